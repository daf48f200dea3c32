// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/attention/problem.hpp"
#include "library/core/cancellation.hpp"
#include "library/core/team.hpp"

namespace headgate {

/// Largest packed size, in bytes, of a head that stays in the second-level cache of its thread.
inline constexpr double kOwnHead_bytes = std::int64_t{1} << 20;

/// Returns the largest packed size, in bytes, at which the heads of `threads` threads fit the third-level cache
/// together. The result is between 1 and 4 MiB, measured with two threads (docs/design/forward.md).
inline double shared_head_bytes(int threads) {
  return std::max(kOwnHead_bytes, std::min(4 * kOwnHead_bytes, kPackedBudget_bytes / threads));
}

/// Returns true if each key/value head should be one thread's task. This requires heads of at most `most_bytes` packed
/// bytes, and in total at least four times the largest head per thread, for an even load. A thread then packs all its
/// heads into the same memory, which stays in its caches, and waits for others only at the end
/// (docs/design/forward.md).
inline bool heads_are_tasks(const HeadSurvey& heads, int threads, double most_bytes) {
  constexpr double kHeadsPerThread = 4;
  return heads.largest_bytes > 0 && heads.largest_bytes <= most_bytes &&
         heads.all_bytes >= kHeadsPerThread * threads * heads.largest_bytes;
}

/// Returns true if the next head's rows fit the second-level cache beside the current head of `bytes` packed bytes.
inline bool next_head_fits(double bytes) { return bytes <= std::int64_t{1} << 18; }

/// Returns the number of heads that a thread takes at a time if heads are tasks: 1 to 8, more if there are many heads.
inline std::int64_t heads_in_turn(std::int64_t heads, std::int64_t threads) {
  constexpr std::int64_t kTurns = 32, kMost = 8;
  const std::int64_t share = heads / (kTurns * threads);
  return share < 1 ? 1 : share > kMost ? kMost : share;
}

/// Runs all heads of a batch, each cut into `pieces`, as tasks of the team. Every thread of the team must call this
/// function.
template <class Worker>
void run_heads(const Team& team, Worker& worker, const PackedHeads* parts, const HeadCounts& batch, int threads,
               Cancellation& cancellation, std::int64_t pieces = 1) {
  const std::int64_t tasks = batch.heads * pieces;
  const std::int64_t in_turn = heads_in_turn(tasks, threads);
  const auto task = [&](std::int64_t n) {
    HeadTask head = head_task_of(parts, batch, n / pieces);
    head.piece = n % pieces;
    head.pieces = pieces;
    return head;
  };
  team.in_turn(
      tasks,
      [&](std::int64_t n) {
        if (!cancellation.requested(n, in_turn)) worker.run_head(task(n), task(n + 1));
      },
      in_turn);
}

// Loops of a team over batches of packed heads and over tasks in order. Every thread of a team (team.hpp) must call
// these functions. A cancelled call skips work that has not begun.

/// Calls compute() for each batch, then next() in one thread, which moves on to the following batch. compute() must end
/// with a barrier.
template <class Batch, class Compute, class Next>
void for_each_batch(const Team& team, Batch& batch, const Compute& compute, const Next& next) {
  while (batch.parts > 0) {
    const bool is_last = batch.is_last();  // read before the barrier: after it another thread may move on
    compute();
    if (is_last) return;
    team.once(next);
  }
}

/// Calls visit(n) for n < count and starts the calls in ascending order, as Turnstile requires. Ends without a barrier.
/// `next` is shared by all threads and must be 0 at first.
template <class Visit>
void for_each_in_order(std::atomic<std::int64_t>& next, std::int64_t count, Cancellation& cancellation,
                       const Visit& visit) {
  for (;;) {
    // After cancellation no further call starts. No n is skipped between started calls, because each waits for its
    // predecessors.
    if (cancellation.requested()) next.store(count, std::memory_order_relaxed);
    const std::int64_t n = next.fetch_add(1, std::memory_order_relaxed);
    if (n >= count) return;
    visit(n);
  }
}

}  // namespace headgate
