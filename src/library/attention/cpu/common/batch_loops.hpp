// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "library/core/cancellation.hpp"
#include "library/core/team.hpp"

// Loops of a team over batches of packed heads and over tasks in order. Every thread of a team (team.hpp) must call
// these functions. A cancelled call skips work that has not begun.

namespace headgate {

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
