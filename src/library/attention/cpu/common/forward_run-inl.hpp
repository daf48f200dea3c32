// SPDX-License-Identifier: Apache-2.0
// How the threads of a forward pass share its work; included once per Highway target.
#if defined(HEADGATE_ATTENTION_FORWARD_RUN_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_FORWARD_RUN_INL_
#undef HEADGATE_ATTENTION_FORWARD_RUN_INL_
#else
#define HEADGATE_ATTENTION_FORWARD_RUN_INL_
#endif

#include <omp.h>

#include <cstdint>

#include "hwy/highway.h"
#include "library/attention/cpu/common/head_tasks.hpp"
#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/route.hpp"
#include "library/attention/problem.hpp"
#include "library/core/cancellation.hpp"
#include "library/core/workspace.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

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
#pragma omp parallel num_threads(plan.threads) default(none) shared(plan, p, shared, parts, batch, cancellation)
  {
    Worker worker(plan, shared, omp_get_thread_num());
    while (batch.parts > 0) {
      const bool last = batch.is_last();  // before the loops' barriers: then another thread may go on
      if (plan.whole_heads) {
        run_heads(worker, parts, batch, plan.threads, cancellation);
        if (last) break;
#pragma omp single
        batch.next_unless(cancellation);
        continue;
      }
      if constexpr (Plan::kMaySelect) {
        if (plan.selects()) {
#pragma omp for schedule(static)
          for (std::int64_t n = 0; n < batch.tiles; ++n) {
            const PackedHeads& part = find_owner(parts, batch.parts, &PackedHeads::first_tile, n);
            const std::int64_t at = n - part.first_tile;
            worker.select_rows(part, part.h0 * p.group + at / part.tiles, at % part.tiles, n);
          }
        }
      }
#pragma omp for schedule(dynamic, 1)
      for (std::int64_t n = 0; n < batch.blocks; ++n) {
        if (cancellation.requested()) continue;
        const PackedHeads& part = find_owner(parts, batch.parts, &PackedHeads::first_block, n);
        const std::int64_t at = n - part.first_block;
        worker.pack_block(part, part.h0 + at / part.blocks, at % part.blocks);
      }
      // Under a causal mask the last queries cost most: they go first, so that threads end together.
#pragma omp for schedule(dynamic, 1)
      for (std::int64_t n = 0; n < batch.tiles; ++n) {
        if (cancellation.requested()) continue;
        const PackedHeads& part = find_owner(parts, batch.parts, &PackedHeads::first_tile, n);
        const std::int64_t at = n - part.first_tile;
        worker.run_tile(part, part.h0 * p.group + at / part.tiles, part.tiles - 1 - at % part.tiles);
      }
      if (last) break;
#pragma omp single
      batch.next_unless(cancellation);
    }
  }
  cancellation.throw_if_seen();
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_FORWARD_RUN_INL_
