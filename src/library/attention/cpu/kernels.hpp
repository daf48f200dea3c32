// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/problem.hpp"
#include "library/core/view.hpp"

namespace headgate {

// Kernels run on the vector target of the problem's context.
// They throw only std::bad_alloc and Cancelled. They throw std::bad_alloc before they write any output.

void cpu_statistics(const StatisticsProblem& problem);

// The next functions plan the kernels of the route tables (route.cc).
// Each function plans its kernel's work on the sequences of `list`, and constructs this work, a PlannedWork, in `slot`.
// The list must not be empty, except for tiles_backward().

/// Plans the kernel for few queries. It reads K and V in place, once for all queries and heads that share them.
void few_queries_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot);
/// Plans the kernel for queries with lists of keys. It reads only the listed rows of K and V, in place.
void listed_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot);
/// Plans the kernel that uses the CPU's bf16 instructions for products (Precision::native16).
void native16_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot);
/// Plans the kernel for small heads. It computes the scores of a few queries with all keys at once.
void small_heads_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot);
/// Plans the kernel that packs K and V and computes tile by tile. It can compute every sequence.
void tiles_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot);

// Backward passes write each query tile's contribution to dsinks in one of two ways:
//   with one sink per head, to sink_parts (query tiles of all sequences, Hq), or nowhere if sink_parts is empty;
//   with a sink per query, to gradients.dsinks (B,Hq,T,1).

void listed_backward(const BackwardProblem& problem, const View<double, 2>& sink_parts, const WorkList& list,
                     WorkSlot& slot);
void native16_backward(const BackwardProblem& problem, const View<double, 2>& sink_parts, const WorkList& list,
                       WorkSlot& slot);
void small_heads_backward(const BackwardProblem& problem, const View<double, 2>& sink_parts, const WorkList& list,
                          WorkSlot& slot);
/// Plans the backward pass of the kernel that computes tile by tile. If the list is empty, that pass only sets dbias to
/// 0.
void tiles_backward(const BackwardProblem& problem, const View<double, 2>& sink_parts, const WorkList& list,
                    WorkSlot& slot);

}  // namespace headgate
