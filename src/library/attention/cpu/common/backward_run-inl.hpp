// SPDX-License-Identifier: Apache-2.0
// How the threads of a backward pass share its work; included once per Highway target.
#if defined(HEADGATE_ATTENTION_BACKWARD_RUN_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_BACKWARD_RUN_INL_
#undef HEADGATE_ATTENTION_BACKWARD_RUN_INL_
#else
#define HEADGATE_ATTENTION_BACKWARD_RUN_INL_
#endif

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "library/attention/cpu/common/head_tasks.hpp"
#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/dense/backward_plan-inl.hpp"
#include "library/attention/cpu/route.hpp"
#include "library/attention/problem.hpp"
#include "library/core/cancellation.hpp"
#include "library/core/workspace.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// A backward pass whose workers, one a thread, do the work of its three stages: Worker(plan, shared, thread). Buffers:
/// what they share.
template <class Worker, class Plan, class Buffers>
void run_backward(const BackwardProblem& p, const View<double, 2>& sink_parts, const RunRest& run_rest) {
  const Plan plan(p, sink_parts);
  if (plan.most.parts == 0 && !p.gradients.dbias.present()) return run_rest(0);  // no heads
  const Placed<Buffers> placed(plan);
  const Buffers& shared = *placed;
  run_rest(placed.bytes());
  std::int64_t bias_rows = 0;
  if constexpr (Plan::kMayHaveDbias) {
    const Shape& bias = shared.dbias.shape;
    bias_rows = bias[0] * bias[1] * bias[2];  // 0 where dbias is absent
    std::fill_n(shared.dbias_turns.data, shared.dbias_turns.count(), 0);
  }
  const PackedHeads* const parts = shared.parts.data;
  HeadBatch batch(plan, shared.parts.data);
  std::atomic<std::int64_t> next{0};
  const auto start_batch = [&] {
    if (!plan.whole_heads) list_tasks(shared.tasks, shared.parts, batch);
    next.store(0, std::memory_order_relaxed);
  };
  Cancellation cancellation(p.context);
  const auto pack_next = [&] {
    batch.next_unless(cancellation);
    start_batch();
  };
  start_batch();
#pragma omp parallel num_threads(plan.threads) default(none) \
    shared(plan, p, shared, bias_rows, next, parts, batch, pack_next, cancellation)
  {
    Worker worker(plan, shared, omp_get_thread_num());
    /// Chooses the head and returns its query head and tile of number n.
    const auto select_tile = [&](std::int64_t n) {
      const PackedHeads& part = find_owner(parts, batch.parts, &PackedHeads::first_tile, n);
      const std::int64_t at = n - part.first_tile;
      const std::int64_t head = at / part.tiles;
      worker.select(part, part.h0 + head / p.group);
      return std::pair{head % p.group, at % part.tiles};
    };
    if constexpr (Plan::kMayHaveDbias) {
#pragma omp for schedule(static)
      for (std::int64_t n = 0; n < bias_rows; ++n) worker.zero_dbias_row(n);
    }
    while (batch.parts > 0) {
      const bool last = batch.is_last();  // before the loops' barriers: then another thread may go on
      if (plan.whole_heads) {
        run_heads(worker, parts, batch, plan.threads, cancellation);
        if (last) break;
#pragma omp single
        pack_next();
        continue;
      }
#pragma omp for schedule(dynamic, 1) nowait
      for (std::int64_t n = 0; n < batch.blocks; ++n) {
        if (cancellation.requested()) continue;
        const PackedHeads& part = find_owner(parts, batch.parts, &PackedHeads::first_block, n);
        const std::int64_t at = n - part.first_block;
        worker.select(part, part.h0 + at / part.blocks);
        worker.pack_keys(at % part.blocks);
      }
#pragma omp for schedule(dynamic, 1)
      for (std::int64_t n = 0; n < batch.tiles; ++n) {
        if (cancellation.requested()) continue;
        const auto [g, tile] = select_tile(n);
        worker.prepare_queries(g, tile);
      }
      for (;;) {
        // No further block starts. None is skipped between blocks that start: each waits for its predecessors.
        if (cancellation.requested()) next.store(batch.blocks, std::memory_order_relaxed);
        const std::int64_t n = next.fetch_add(1, std::memory_order_relaxed);
        if (n >= batch.blocks) break;
        const BlockTask& task = shared.tasks(n);
        worker.select(*task.part, task.h);
        worker.run_block(task.block);
      }
#pragma omp barrier
#pragma omp for schedule(dynamic, 1)
      for (std::int64_t n = 0; n < batch.tiles; ++n) {
        if (cancellation.requested()) continue;
        const auto [g, tile] = select_tile(n);
        worker.write_dq(g, tile);
      }
      if (last) break;
#pragma omp single
      pack_next();
    }
    if constexpr (Plan::kMayHaveDbias) {
#pragma omp for schedule(static)
      for (std::int64_t n = 0; n < (plan.dbias_copied ? bias_rows : 0); ++n) worker.write_dbias_row(n);
    }
  }
  cancellation.throw_if_seen();
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_BACKWARD_RUN_INL_
