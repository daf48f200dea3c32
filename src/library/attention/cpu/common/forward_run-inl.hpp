// SPDX-License-Identifier: Apache-2.0
// How the threads of a forward pass share its work; included once per Highway target.
#if defined(HEADGATE_ATTENTION_FORWARD_RUN_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_FORWARD_RUN_INL_
#undef HEADGATE_ATTENTION_FORWARD_RUN_INL_
#else
#define HEADGATE_ATTENTION_FORWARD_RUN_INL_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "library/attention/cpu/common/batch_loops.hpp"
#include "library/attention/cpu/common/head_tasks.hpp"
#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/planned_work.hpp"
#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/problem.hpp"
#include "library/core/cancellation.hpp"
#include "library/core/team.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// The work of a thread on a batch of heads whose keys and values are packed together.
template <class Worker, class Plan>
void compute_batch(const Team& team, Worker& worker, const Plan& plan, const PackedHeads* parts,
                   const HeadTotals& batch, Cancellation& cancellation) {
  const std::int64_t group = plan.p.group;
  if constexpr (Plan::kMaySelect) {
    if (plan.selects()) {
      team.in_parts(batch.tiles, [&](std::int64_t n) {
        with_query_tile(parts, batch, n, [&](const PackedHeads& part, std::int64_t head, std::int64_t tile) {
          worker.select_rows(part, part.h0 * group + head, tile, n);
        });
      });
    }
  }
  for_key_blocks(team, parts, batch, cancellation, [&](const PackedHeads& part, std::int64_t h, std::int64_t block) {
    worker.pack_block(part, h, block);
  });
  team.wait();
  // Under a causal mask the last queries cost most: they go first, so that threads end together.
  for_query_tiles(team, parts, batch, cancellation, [&](const PackedHeads& part, std::int64_t head, std::int64_t tile) {
    worker.run_tile(part, part.h0 * group + head, part.tiles - 1 - tile);
  });
}

/// Runs a forward pass. Each thread has a Worker(plan, shared, thread), which packs and computes; Buffers are the
/// memory that the threads share.
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

/// Plans a forward pass over the sequences of a list, for run_forward.
template <class Worker, class Plan, class Buffers>
void plan_forward(const ForwardProblem& problem, const WorkList& list, WorkSlot& slot) {
  slot.emplace<PlannedKernel<Plan, Buffers, run_forward<Worker, Plan, Buffers>>>(problem, list);
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_FORWARD_RUN_INL_
