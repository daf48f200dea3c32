// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "library/attention/cpu/common/planned_work.hpp"
#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/problem.hpp"
#include "library/core/view.hpp"

namespace headgate {

// Kernels run on the context's vector target. They throw nothing but std::bad_alloc, before any output is written, and
// Cancelled.

void cpu_forward(const ForwardProblem& problem);
void cpu_backward(const BackwardProblem& problem);
void cpu_statistics(const StatisticsProblem& problem);

// Kernels of the route tables (route.cc). Each plans its work on the sequences of a list, which are at least one unless
// noted, and puts it into the slot.

/// Reads K and V in place, once for all queries and heads that share them.
void few_queries_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot);
/// Multiplies bf16 numbers in the instructions that a CPU has for them (Precision::native16).
void native16_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot);
/// Makes all scores of a panel of queries at once.
void small_heads_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot);
/// Packs K and V and visits them tile by tile. Can compute every sequence.
void tiles_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot);

// The backward passes write the terms of dsinks, unless it is empty, to sink_parts (query tiles of all sequences, Hq).

void native16_backward(const BackwardProblem& problem, const View<double, 2>& sink_parts, const WorkList& list,
                       WorkSlot& slot);
void small_heads_backward(const BackwardProblem& problem, const View<double, 2>& sink_parts, const WorkList& list,
                          WorkSlot& slot);
/// The list may be empty: dbias becomes 0.
void tiles_backward(const BackwardProblem& problem, const View<double, 2>& sink_parts, const WorkList& list,
                    WorkSlot& slot);

}  // namespace headgate
