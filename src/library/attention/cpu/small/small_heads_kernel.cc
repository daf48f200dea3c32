// SPDX-License-Identifier: Apache-2.0
// Both passes over heads with few queries and few keys.

#include "library/attention/cpu/kernels.hpp"
#include "library/core/dispatch.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/attention/cpu/small/small_heads_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "library/attention/cpu/small/small_backward-inl.hpp"
#include "library/attention/cpu/small/small_forward-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

template <typename T>
void small_forward_typed(const ForwardProblem& p, const RunRest& run_rest) {
  run_small_heads<SmallForwardWorker<T>, SmallForwardScratch<T>>(SmallForwardPlan(p), run_rest);
}

template <typename T>
void small_backward_typed(const BackwardProblem& p, const RunRest& run_rest) {
  run_small_heads<SmallBackwardWorker<T>, SmallBackwardScratch<T>>(SmallBackwardPlan(p), run_rest);
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(small_forward_typed);
HEADGATE_TARGET_TABLE(small_backward_typed);

void small_heads_forward(const ForwardProblem& problem, const RunRest& run_rest) {
  HEADGATE_FOR_DTYPE(small_forward_typed, problem.inputs.q.dtype, problem.context.target)(problem, run_rest);
}

void small_heads_backward(const BackwardProblem& problem, const View<double, 2>& /*sink_parts*/,
                          const RunRest& run_rest) {
  HEADGATE_FOR_DTYPE(small_backward_typed, problem.inputs.q.dtype, problem.context.target)(problem, run_rest);
}

}  // namespace headgate
#endif  // HWY_ONCE
