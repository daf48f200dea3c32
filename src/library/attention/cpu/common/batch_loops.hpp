// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "library/attention/cpu/common/packed_heads.hpp"
#include "library/core/cancellation.hpp"
#include "library/core/team.hpp"

// Loops over what batches of packed heads hold. Every thread of a team (team.hpp) calls them; a cancelled
// call skips the work that has not begun.

namespace headgate {

/// compute() for each batch, then next(), in one thread, which goes on to the batch after it. compute() ends with a
/// barrier.
template <class Batch, class Compute, class Next>
void for_each_batch(const Team& team, Batch& batch, const Compute& compute, const Next& next) {
  while (batch.parts > 0) {
    const bool is_last = batch.is_last();  // before the barrier, behind which another thread may go on
    compute();
    if (is_last) return;
    team.once(next);
  }
}

/// visit(part, key/value head, block) for all key blocks of the batch. Ends without a barrier.
template <class Visit>
void for_key_blocks(const Team& team, const PackedHeads* parts, const HeadTotals& batch, Cancellation& cancellation,
                    const Visit& visit) {
  team.in_turn_on(batch.blocks, [&](std::int64_t n) {
    if (cancellation.requested()) return;
    const PackedHeads& part = find_owner(parts, batch.parts, &PackedHeads::first_block, n);
    const std::int64_t at = n - part.first_block;
    visit(part, part.h0 + at / part.blocks, at % part.blocks);
  });
}

/// visit(part, n-th query head of the part, tile) for query tile number `number` of the batch.
template <class Visit>
void with_query_tile(const PackedHeads* parts, const HeadTotals& batch, std::int64_t number, const Visit& visit) {
  const PackedHeads& part = find_owner(parts, batch.parts, &PackedHeads::first_tile, number);
  const std::int64_t at = number - part.first_tile;
  visit(part, at / part.tiles, at % part.tiles);
}

/// with_query_tile for all query tiles of the batch. Ends with a barrier.
template <class Visit>
void for_query_tiles(const Team& team, const PackedHeads* parts, const HeadTotals& batch, Cancellation& cancellation,
                     const Visit& visit) {
  team.in_turn(batch.tiles, [&](std::int64_t n) {
    if (!cancellation.requested()) with_query_tile(parts, batch, n, visit);
  });
}

/// visit(n) for n < count, begun in this order, as a Turnstile asks. Ends without a barrier. `next`: of all threads, 0
/// at first.
template <class Visit>
void for_each_in_order(std::atomic<std::int64_t>& next, std::int64_t count, Cancellation& cancellation,
                       const Visit& visit) {
  for (;;) {
    // No further one starts. None is skipped between those that start: each waits for its predecessors.
    if (cancellation.requested()) next.store(count, std::memory_order_relaxed);
    const std::int64_t n = next.fetch_add(1, std::memory_order_relaxed);
    if (n >= count) return;
    visit(n);
  }
}

}  // namespace headgate
