// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "library/attention/problem.hpp"
#include "library/core/view.hpp"

namespace headgate {

// Kernels run on the context's vector target. They throw nothing but std::bad_alloc, before any output is written, and
// Cancelled.

void cpu_forward(const ForwardProblem& problem);
/// The forward pass with f32 (or f64) products, of all sequences but those that suit native16.
void exact_forward(const ForwardProblem& problem);
/// The forward pass of the sequences with few queries: K and V are read in place, once for all queries and heads that
/// share them.
void few_queries_forward(const ForwardProblem& problem);
/// Whether few_queries_forward computes the sequence, as the faster kernel for it.
bool suits_few_queries(const ForwardProblem& problem, const Sequence& sequence);
void cpu_backward(const BackwardProblem& problem);
/// The backward pass with f32 (or f64) products, of all sequences but those that suit native16. The terms of dsinks go
/// to sink_parts (query tiles of all sequences, Hq), for the caller to add; where that is empty, dsinks is written.
void exact_backward(const BackwardProblem& problem, const View<double, 2>& sink_parts);
void cpu_statistics(const StatisticsProblem& problem);

}  // namespace headgate
