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

/// Limit in bytes below which the packed operands of a head stay in the second-level cache of one thread.
inline constexpr double kOwnHead_bytes = std::int64_t{1} << 20;

/// Returns the limit in bytes of one head's packed operands. Below it, the third-level cache holds a head per thread.
/// The limit is 1 to 4 MiB. Both bounds were measured with two threads (docs/design/forward.md).
inline double shared_head_bytes(int threads) {
  return std::max(kOwnHead_bytes, std::min(4 * kOwnHead_bytes, kPackedBudget_bytes / threads));
}

/// Returns true if each thread should compute whole key/value heads.
/// A thread then packs one head after another into the same memory, which stays in its caches (docs/design/forward.md).
/// Whole heads are faster under two conditions:
///   Heads are small: the packed operands of each head take at most `most_bytes` bytes.
///   No head dominates: the heads together take at least 4 · `threads` times as many bytes as the largest head.
inline bool heads_are_tasks(const HeadSurvey& heads, int threads, double most_bytes) {
  constexpr double kHeadsPerThread = 4;
  return heads.max_head_bytes > 0 && heads.max_head_bytes <= most_bytes &&
         heads.total_bytes >= kHeadsPerThread * threads * heads.max_head_bytes;
}

/// Returns true if the second-level cache holds `bytes` bytes of packed operands and also the next head's rows.
inline bool next_head_fits(double bytes) { return bytes <= std::int64_t{1} << 18; }

/// Returns how many consecutive heads a thread takes at a time: 1 to 8, growing with the number of heads per thread.
inline std::int64_t heads_in_turn(std::int64_t heads, std::int64_t threads) {
  constexpr std::int64_t kTurns = 32, kMost = 8;
  const std::int64_t share = heads / (kTurns * threads);
  return share < 1 ? 1 : share > kMost ? kMost : share;
}

/// Runs all heads of a batch as tasks. Each head is cut into `pieces` tasks.
/// Every thread of the team must call this function.
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

// Every thread of a team (team.hpp) must call the functions below, which loop over batches and over tasks.
// If the call is cancelled, the loops skip work that has not begun.

/// Calls compute() in every thread for each batch. After each batch, one thread calls next() to move on to the next
/// batch.
/// compute() must end with a barrier.
template <class Batch, class Compute, class Next>
void for_each_batch(const Team& team, Batch& batch, const Compute& compute, const Next& next) {
  while (batch.parts > 0) {
    // Reads is_last() first: after the barrier in compute(), another thread may already start the next batch.
    const bool is_last = batch.is_last();
    compute();
    if (is_last) return;
    team.once(next);
  }
}

/// Calls visit(n) once for each n < count, distributed over all threads. Ends without a barrier.
/// Calls start in ascending order, as Turnstile requires.
/// `next` is the next value of n. All threads share this counter, which must start at 0.
template <class Visit>
void for_each_in_order(std::atomic<std::int64_t>& next, std::int64_t count, Cancellation& cancellation,
                       const Visit& visit) {
  for (;;) {
    // After cancellation, starts no more visits. Started visits must finish, because others may wait for them.
    if (cancellation.requested()) next.store(count, std::memory_order_relaxed);
    const std::int64_t n = next.fetch_add(1, std::memory_order_relaxed);
    if (n >= count) return;
    visit(n);
  }
}

}  // namespace headgate
