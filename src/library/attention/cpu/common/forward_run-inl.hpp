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
#include "library/attention/cpu/route.hpp"
#include "library/attention/problem.hpp"
#include "library/core/cancellation.hpp"
#include "library/core/team.hpp"
#include "library/core/workspace.hpp"

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

/// A forward pass whose workers, one a thread, pack and compute: Worker(plan, shared, thread). Buffers: what they
/// share.
template <class Worker, class Plan, class Buffers>
void run_forward(const ForwardProblem& p, const RunRest& run_rest) {
  const Plan plan(p);
  if (plan.most.parts == 0) return run_rest(0);  // no heads
  const Placed<Buffers> placed(plan);
  run_rest(placed.bytes());
  const Buffers& shared = *placed;
  PackedHeads* const parts = shared.parts.data;
  HeadBatch batch(plan, parts);
  Cancellation cancellation(p.context);
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

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_FORWARD_RUN_INL_
