// SPDX-License-Identifier: Apache-2.0
// Computes the backward pass of gated linear attention with four scans over the tokens of each head. The update of
// token t is u_t = β_t (v_t − e^{g_t} S_{t−1}ᵀ k_t), or u_t = v_t without the delta rule. q is already scaled.
//
//   scan  order    state                       result
//   1     forward  S_t                         differences v_t − e^{g_t} S_{t−1}ᵀ k_t, and S between chunks
//   2     reverse  dS_t                        du_t = dS_tᵀ k_t, where dS_t already includes q_t dy_tᵀ
//   3     forward  S_tᵀ, with columns of k     dq_t = S_t dy_t; read part of dk_t: −e^{g_t} S_{t−1} β_t du_t
//   4     reverse  dS_tᵀ                       write part of dk_t: dS_t u_t
//
// Tasks divide the states of scans 1 and 2 by columns of v, and those of scans 3 and 4 by columns of k. The gradient
// dg_t of a decay is the sum of e^{g_t} S_{t−1} ∘ D_t over the features of v, where D_t is the gradient of e^{g_t}
// S_{t−1}. If dg is wanted, scan 1 saves S between chunks. Scans 3 and 4 then visit each chunk together, from the last
// chunk to the first.
//
// An identity would yield dg_t without the states:
//
//   dg_t = dg_{t+1} + q_t ∘ dq_t + k_t ∘ (read part of dk_t) − k_t ∘ (write part of dk_t)
//
// It is not used, because its terms cancel. After a strong decay, their rounding errors exceed dg_t. In gradients of
// A_log, the errors would also be multiplied by g_t.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "library/core/cancellation.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/team.hpp"
#include "library/core/workspace.hpp"
#include "library/linear_attention/cpu/kernels.hpp"
#include "library/linear_attention/problem.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "library/linear_attention/cpu/backward_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// The headers below are compiled once per target, so foreach_target.h must come first.
#include "library/linear_attention/cpu/backward_plan-inl.hpp"
#include "library/linear_attention/cpu/key_scans-inl.hpp"
#include "library/linear_attention/cpu/state_group_chunk-inl.hpp"
#include "library/linear_attention/cpu/value_scans-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Computes the gradients of one batch of state groups, beginning with group `first`. All threads of the team must call
/// this function.
template <typename T>
void run_batch(const LinearBackwardProblem& p, const LinearBackwardPlan<T>& plan, const LinearBackwardMemory<T>& memory,
               std::int64_t first, const Team& team, Cancellation& cancellation) {
  const std::int64_t count = std::min(plan.groups_in_batch, plan.groups - first);
  std::byte* const scratch = memory.scratch.at(team.thread());
  const auto group_of = [&](std::int64_t n) { return plan.group(p, first + n, memory.groups.at(n)); };
  team.in_turn(count * plan.most_chunks, [&](std::int64_t n) {
    if (!cancellation.requested()) pack_tokens(p, group_of(n / plan.most_chunks), n % plan.most_chunks, scratch);
  });
  const std::int64_t value_tasks = p.group_states() * plan.value_pieces;
  team.in_turn(count * value_tasks, [&](std::int64_t n) {
    if (cancellation.requested()) return;
    const std::int64_t task = n % value_tasks;
    ValueScans<T>(p, group_of(n / value_tasks), task / plan.value_pieces, scratch, cancellation)
        .run(plan.piece(plan.value_blocks, task % plan.value_pieces, plan.value_pieces));
  });
  if (p.needs_key_scans()) {
    team.in_turn(count * plan.key_pieces, [&](std::int64_t n) {
      if (cancellation.requested()) return;
      KeyScans<T>(p, group_of(n / plan.key_pieces), scratch, cancellation)
          .run(plan.piece(plan.key_blocks, n % plan.key_pieces, plan.key_pieces));
    });
  }
  team.in_turn(count * plan.most_chunks, [&](std::int64_t n) {
    if (!cancellation.requested())
      write_token_gradients(p, group_of(n / plan.most_chunks), n % plan.most_chunks, memory.dbetas, scratch);
  });
}

template <typename T>
void linear_backward_typed(const LinearBackwardProblem& p) {
  const LinearBackwardPlan<T> plan(p);
  const Placed<LinearBackwardMemory<T>> memory(p, plan);
  Cancellation cancellation(p.context);
  run_team(plan.threads, [&](const Team& team) {
    for (std::int64_t first = 0; first < plan.groups; first += plan.groups_in_batch)
      run_batch(p, plan, *memory, first, team, cancellation);
    sum_dbetas(team, p, memory->dbetas);
  });
  cancellation.throw_if_seen();
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate {

HEADGATE_TARGET_TABLE(linear_backward_typed);

void cpu_linear_backward(const LinearBackwardProblem& problem) {
  if (declines_native16(problem) == nullptr) return native16_linear_backward(problem);
  linear_backward_scans(problem);
}

void linear_backward_scans(const LinearBackwardProblem& problem) {
  HEADGATE_FOR_DTYPE(linear_backward_typed, problem.inputs.q.dtype, problem.context.target)(problem);
}

}  // namespace headgate
#endif  // HWY_ONCE
