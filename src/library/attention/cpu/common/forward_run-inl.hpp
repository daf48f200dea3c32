// SPDX-License-Identifier: Apache-2.0
// Distributes the work of a forward pass over its threads; included once per Highway target.
#if defined(HEADGATE_ATTENTION_FORWARD_RUN_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_FORWARD_RUN_INL_
#undef HEADGATE_ATTENTION_FORWARD_RUN_INL_
#else
#define HEADGATE_ATTENTION_FORWARD_RUN_INL_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "library/attention/cpu/common/head_tasks.hpp"
#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/problem.hpp"
#include "library/core/cancellation.hpp"
#include "library/core/team.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Performs one thread's work on a batch of heads, in three stages:
///   1. if the call has a gate threshold, lists the query rows with a gate value above it;
///   2. packs keys and values;
///   3. computes query tiles.
template <class Worker, class Plan>
void compute_batch(const Team& team, Worker& worker, const Plan& plan, const PackedHeads* parts,
                   const HeadCounts& batch, Cancellation& cancellation) {
  const std::int64_t group = plan.p.group;
  if constexpr (Plan::kSkipsClosedRows) {
    if (plan.has_gate_threshold()) {
      team.in_parts(batch.tiles, [&](std::int64_t n) {
        const HeadTask task = tile_task_of(parts, batch, group, n);
        worker.list_open_rows(*task.part, task.h * group + task.g, task.piece, n);
      });
    }
  }
  team.in_turn(batch.blocks, [&](std::int64_t n) {
    if (cancellation.requested()) return;
    const HeadTask task = block_task_of(parts, batch, n);
    worker.pack_block(*task.part, task.h, task.piece);
  });
  // Starts with the last queries. Under a causal mask they take longest, so that threads finish at about the same time.
  team.in_turn(batch.tiles, [&](std::int64_t n) {
    if (cancellation.requested()) return;
    const HeadTask task = tile_task_of(parts, batch, group, n);
    worker.run_tile(*task.part, task.h * group + task.g, task.part->tiles - 1 - task.piece);
  });
}

/// Runs a forward pass with one Worker(plan, shared, thread) per thread. Workers share the buffers in `shared`.
template <class Worker, class Plan, class Buffers>
void run_forward(const Plan& plan, const Buffers& shared) {
  PackedHeads* const parts = shared.parts.data;
  HeadBatch batch(plan, parts);
  Cancellation cancellation(plan.p.context);
  run_team(plan.threads, [&](const Team& team) {
    Worker worker(plan, shared, team.thread());
    for_each_batch(
        team, batch,
        [&] {
          if (plan.whole_heads) {
            run_heads(team, worker, parts, batch, plan.threads, cancellation);
          } else {
            compute_batch(team, worker, plan, parts, batch, cancellation);
          }
        },
        [&] { batch.next_unless(cancellation); });
  });
  cancellation.throw_if_seen();
}

/// Plans a forward pass over the sequences of `list`, and stores the plan in `slot` for run_forward().
template <class Worker, class Plan, class Buffers>
void plan_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot) {
  slot.emplace<PlannedKernel<Plan, Buffers, run_forward<Worker, Plan, Buffers>>>(problem, list);
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_FORWARD_RUN_INL_
