// SPDX-License-Identifier: Apache-2.0
// Distributes the work of a backward pass over its threads; included once per Highway target.
#if defined(HEADGATE_ATTENTION_BACKWARD_RUN_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_BACKWARD_RUN_INL_
#undef HEADGATE_ATTENTION_BACKWARD_RUN_INL_
#else
#define HEADGATE_ATTENTION_BACKWARD_RUN_INL_
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "library/attention/cpu/common/head_tasks.hpp"
#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/problem.hpp"
#include "library/core/cancellation.hpp"
#include "library/core/team.hpp"
#include "library/core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Lists the key blocks of a batch in the order in which threads take them.
///   All blocks of a head are in ascending order, because a thread that adds to dq or dbias waits for earlier blocks.
///   For each block index, the heads of a sequence are in ascending order, for the same reason (Turnstile).
///   The blocks of each head are spread over the list, so that threads work on different heads and rarely wait.
///   Heads with one block come last, to balance the load.
inline void list_tasks(const View<HeadTask, 1>& tasks, const View<PackedHeads, 1>& parts, const HeadCounts& batch) {
  std::int64_t most_blocks = 0;
  bool alike = true;
  for (std::int64_t n = 0; n < batch.parts; ++n) {
    most_blocks = std::max(most_blocks, parts(n).blocks);
    alike = alike && parts(n).blocks == parts(0).blocks;
  }
  HeadTask* next = tasks.data;
  for (std::int64_t block = 0; block < most_blocks; ++block) {
    // parts are sorted by descending number of blocks
    for (std::int64_t n = 0; n < batch.parts && block < parts(n).blocks; ++n) {
      for (std::int64_t h = 0; h < parts(n).heads; ++h)
        *next++ = {.part = &parts(n), .h = parts(n).h0 + h, .piece = block};
    }
  }
  if (alike) return;
  std::sort(tasks.data, next, [](const HeadTask& a, const HeadTask& b) {
    const std::int64_t left = (a.piece + 1) * b.part->blocks;
    const std::int64_t right = (b.piece + 1) * a.part->blocks;
    if (left != right) return left < right;
    return a.part != b.part ? a.part < b.part : a.h < b.h;
  });
}

/// Performs one thread's work on a batch of heads, in three stages:
///   1. packs keys and prepares queries;
///   2. computes each key block with the queries that see it;
///   3. writes dq.
/// `next_block` is the next key block that a thread takes. All threads share this counter, which must start at 0.
template <class Worker, class Plan, class Buffers>
void compute_batch(const Team& team, Worker& worker, const Plan& plan, const Buffers& shared, const HeadCounts& batch,
                   std::atomic<std::int64_t>& next_block, Cancellation& cancellation) {
  const PackedHeads* const parts = shared.parts.data;
  const std::int64_t group = plan.p.group;
  // Calls visit(g, tile) for each query tile of the batch. g counts the query heads that share a key/value head.
  // Selects this key/value head in the worker before each call.
  const auto on_query_tiles = [&](const auto& visit) {
    team.in_turn(batch.tiles, [&](std::int64_t n) {
      if (cancellation.requested()) return;
      const HeadTask task = tile_task_of(parts, batch, group, n);
      worker.select(*task.part, task.h);
      visit(task.g, task.piece);
    });
  };
  team.in_turn_nowait(batch.blocks, [&](std::int64_t n) {
    if (cancellation.requested()) return;
    const HeadTask task = block_task_of(parts, batch, n);
    worker.select(*task.part, task.h);
    worker.pack_keys(task.piece);
  });
  on_query_tiles([&](std::int64_t g, std::int64_t tile) { worker.prepare_queries(g, tile); });
  for_each_in_order(next_block, batch.blocks, cancellation, [&](std::int64_t n) {
    const HeadTask& task = shared.tasks(n);
    worker.select(*task.part, task.h);
    worker.run_block(task.piece);
  });
  team.wait();
  on_query_tiles([&](std::int64_t g, std::int64_t tile) { worker.write_dq(g, tile); });
}

/// Runs a backward pass with one Worker(plan, shared, thread) per thread. Workers share the buffers in `shared`.
template <class Worker, class Plan, class Buffers>
void run_backward(const Plan& plan, const Buffers& shared) {
  const std::int64_t dbias_rows = shared.dbias.rows();
  shared.dbias.clear_turns();
  HeadBatch batch(plan, shared.parts.data);
  Cancellation cancellation(plan.p.context);
  std::atomic<std::int64_t> next_block{0};
  const auto start_batch = [&] {
    if (!plan.whole_heads) list_tasks(shared.tasks, shared.parts, batch);
    next_block.store(0, std::memory_order_relaxed);
  };
  start_batch();
  run_team(plan.threads, [&](const Team& team) {
    Worker worker(plan, shared, team.thread());
    team.in_parts(dbias_rows, [&](std::int64_t n) { worker.dbias().clear_row(n); });
    for_each_batch(
        team, batch,
        [&] {
          if (plan.whole_heads) {
            run_heads(team, worker, shared.parts.data, batch, plan.threads, cancellation);
          } else {
            compute_batch(team, worker, plan, shared, batch, next_block, cancellation);
          }
        },
        [&] {
          batch.next_unless(cancellation);
          start_batch();
        });
    team.in_parts(plan.dbias.is_copied() ? dbias_rows : 0, [&](std::int64_t n) { worker.dbias().write_row(n); });
  });
  cancellation.throw_if_seen();
}

/// Plans a backward pass over the sequences of `list`, and stores the plan in `slot` for run_backward().
template <class Worker, class Plan, class Buffers>
void plan_backward(const BackwardProblem& problem, const View<double, 2>& sink_parts, const WorkList& list,
                   WorkSlot& slot) {
  slot.emplace<PlannedKernel<Plan, Buffers, run_backward<Worker, Plan, Buffers>>>(problem, list, sink_parts);
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_BACKWARD_RUN_INL_
