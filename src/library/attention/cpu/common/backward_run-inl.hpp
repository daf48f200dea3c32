// SPDX-License-Identifier: Apache-2.0
// How the threads of a backward pass share its work; included once per Highway target.
#if defined(HEADGATE_ATTENTION_BACKWARD_RUN_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_BACKWARD_RUN_INL_
#undef HEADGATE_ATTENTION_BACKWARD_RUN_INL_
#else
#define HEADGATE_ATTENTION_BACKWARD_RUN_INL_
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "library/attention/cpu/common/batch_loops.hpp"
#include "library/attention/cpu/common/head_tasks.hpp"
#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/cpu/common/planned_work.hpp"
#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/cpu/dense/backward_plan-inl.hpp"
#include "library/attention/problem.hpp"
#include "library/core/cancellation.hpp"
#include "library/core/team.hpp"
#include "library/core/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// The three stages of a thread's work on a batch of heads: packs keys and prepares queries; takes key blocks, each
/// over the queries that see it; writes dq. `next_block`: of all threads, 0 at first.
template <class Worker, class Plan, class Buffers>
void compute_batch(const Team& team, Worker& worker, const Plan& plan, const Buffers& shared, const HeadTotals& batch,
                   std::atomic<std::int64_t>& next_block, Cancellation& cancellation) {
  const PackedHeads* const parts = shared.parts.data;
  const std::int64_t group = plan.p.group;
  // visit(query head of the group, tile) with the worker on that head.
  const auto on_query_tiles = [&](const auto& visit) {
    for_query_tiles(team, parts, batch, cancellation,
                    [&](const PackedHeads& part, std::int64_t head, std::int64_t tile) {
                      worker.select(part, part.h0 + head / group);
                      visit(head % group, tile);
                    });
  };
  for_key_blocks(team, parts, batch, cancellation, [&](const PackedHeads& part, std::int64_t h, std::int64_t block) {
    worker.select(part, h);
    worker.pack_keys(block);
  });
  on_query_tiles([&](std::int64_t g, std::int64_t tile) { worker.prepare_queries(g, tile); });
  for_each_in_order(next_block, batch.blocks, cancellation, [&](std::int64_t n) {
    const BlockTask& task = shared.tasks(n);
    worker.select(*task.part, task.h);
    worker.run_block(task.block);
  });
  team.wait();
  on_query_tiles([&](std::int64_t g, std::int64_t tile) { worker.write_dq(g, tile); });
}

/// Runs a backward pass. Each thread has a Worker(plan, shared, thread), which does the work of the three stages;
/// Buffers are the memory that the threads share.
template <class Worker, class Plan, class Buffers>
void run_backward(const Plan& plan, const Buffers& shared) {
  std::int64_t bias_rows = 0;  // where dbias accumulates
  if constexpr (Plan::kMayHaveDbias) {
    const Shape& bias = shared.dbias.shape;
    bias_rows = bias[0] * bias[1] * bias[2];  // 0 where dbias is absent
    std::fill_n(shared.dbias_turns.data, shared.dbias_turns.count(), 0);
  }
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
    if constexpr (Plan::kMayHaveDbias) team.in_parts(bias_rows, [&](std::int64_t n) { worker.zero_dbias_row(n); });
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
    if constexpr (Plan::kMayHaveDbias) {
      team.in_parts(plan.dbias_copied ? bias_rows : 0, [&](std::int64_t n) { worker.write_dbias_row(n); });
    }
  });
  cancellation.throw_if_seen();
}

/// Plans a backward pass over the sequences of a list, for run_backward.
template <class Worker, class Plan, class Buffers>
void plan_backward(const BackwardProblem& problem, const View<double, 2>& sink_parts, const WorkList& list,
                   WorkSlot& slot) {
  slot.emplace<PlannedKernel<Plan, Buffers, run_backward<Worker, Plan, Buffers>>>(problem, list, sink_parts);
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_BACKWARD_RUN_INL_
