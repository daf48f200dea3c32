// SPDX-License-Identifier: Apache-2.0
// Computes the forward and the backward pass of heads with few queries and few keys.

#include "library/attention/cpu/kernels.hpp"
#include "library/core/dispatch.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/attention/cpu/small/small_heads_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Per-target headers must follow foreach_target.h.
#include "library/attention/cpu/small/small_backward-inl.hpp"
#include "library/attention/cpu/small/small_forward-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

template <typename T>
void small_forward_typed(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot) {
  using Plan = SmallForwardPlan;
  using Buffers = SmallHeadsBuffers<Plan, SmallForwardScratch<T>>;
  slot.emplace<PlannedKernel<Plan, Buffers, run_small_heads<SmallForwardWorker<T>, Plan, Buffers>>>(problem, list);
}

template <typename T>
void small_backward_typed(const BackwardProblem& problem, const WorkList& list, WorkSlot& slot) {
  using Kernel = PlannedKernel<SmallBackwardPlan, SmallBackwardBuffers<T>, run_small_backward<T>>;
  slot.emplace<Kernel>(problem, list);
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(small_forward_typed);
HEADGATE_TARGET_TABLE(small_backward_typed);

void small_heads_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot) {
  HEADGATE_FOR_DTYPE(small_forward_typed, problem.inputs.q.dtype, problem.context.target)(problem, list, slot);
}

void small_heads_backward(const BackwardProblem& problem, const View<double, 2>& /*sink_parts*/, const WorkList& list,
                          WorkSlot& slot) {
  HEADGATE_FOR_DTYPE(small_backward_typed, problem.inputs.q.dtype, problem.context.target)(problem, list, slot);
}

}  // namespace headgate
#endif  // HWY_ONCE
