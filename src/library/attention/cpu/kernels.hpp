// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/problem.hpp"
#include "library/core/view.hpp"

namespace headgate {

// Kernels run on the vector target of the problem's context. They throw only std::bad_alloc, before any output is
// written, and Cancelled.

void cpu_statistics(const StatisticsProblem& problem);

// The following kernels are rows of the route tables (route.cc). Each plans its work on the sequences of a list, at
// least one, and constructs it in the slot.

/// Computes few queries. Reads K and V in place, once for all queries and heads that share them.
void few_queries_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot);
/// Computes queries with lists of keys. Reads the listed rows of K and V in place.
void listed_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot);
/// Multiplies bf16 numbers with the CPU's bf16 instructions (Precision::native16).
void native16_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot);
/// Computes small heads. Keeps the scores of a panel of queries for all keys at once.
void small_heads_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot);
/// Packs K and V and processes them tile by tile. This kernel can compute every sequence.
void tiles_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot);

// The backward passes store the terms of dsinks in sink_parts (query tiles of all sequences, Hq), unless empty. If each
// query has a sink, they store them in `gradients.dsinks` instead, which is (B,Hq,T,1).

void listed_backward(const BackwardProblem& problem, const View<double, 2>& sink_parts, const WorkList& list,
                     WorkSlot& slot);
void native16_backward(const BackwardProblem& problem, const View<double, 2>& sink_parts, const WorkList& list,
                       WorkSlot& slot);
void small_heads_backward(const BackwardProblem& problem, const View<double, 2>& sink_parts, const WorkList& list,
                          WorkSlot& slot);
/// The list may be empty: dbias becomes 0.
void tiles_backward(const BackwardProblem& problem, const View<double, 2>& sink_parts, const WorkList& list,
                    WorkSlot& slot);

}  // namespace headgate
