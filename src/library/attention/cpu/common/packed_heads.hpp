// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/problem.hpp"
#include "library/core/cancellation.hpp"

namespace headgate {

/// Numbers of pieces into which one head is cut.
struct HeadPieces {
  std::int64_t tiles = 0, blocks = 0;  ///< query tiles of a query head, key blocks of a key/value head
  std::int64_t panels = 0;             ///< number of panels of a key/value head's keys
};

/// Key/value heads of one sequence that are packed in one batch with heads of other sequences.
struct PackedHeads {
  Sequence sequence;
  std::int64_t n = 0;                   ///< number of the sequence in the call
  std::int64_t h0 = 0, heads = 0;       ///< key/value heads h0 … h0 + heads
  std::int64_t tiles = 0, blocks = 0;   ///< query tiles of a query head, key blocks of a key/value head
  std::int64_t panels = 0;              ///< panels of a key/value head's keys
  std::int64_t tiles_before = 0;        ///< query tiles of one query head in all earlier sequences of the call
  std::int64_t tile_blocks_before = 0;  ///< tiles · blocks of one head, summed over earlier sequences of the list
  // First numbers of this part's heads and pieces, which are numbered consecutively through all parts of the batch.
  // Query tiles are ordered by part, query head and tile; key blocks and panels by part, key/value head, and block or
  // panel.
  std::int64_t first_head = 0, first_tile = 0, first_block = 0, first_panel = 0;

  /// Return the first panel and block of key/value head h, and the first tile of query head g of the head's group.
  std::int64_t panel_of(std::int64_t h) const { return first_panel + (h - h0) * panels; }
  std::int64_t block_of(std::int64_t h) const { return first_block + (h - h0) * blocks; }
  std::int64_t tile_of(std::int64_t h, std::int64_t group, std::int64_t g) const {
    return first_tile + ((h - h0) * group + g) * tiles;
  }
};

/// One key/value head of a part, or one of the pieces into which the head's queries are cut.
struct HeadTask {
  const PackedHeads* part = nullptr;  ///< null if there is no task
  std::int64_t h = 0;
  std::int64_t piece = 0, pieces = 1;

  /// Returns a part that consists of this head alone. Its buffers are slot number `place` of several equal slots, each
  /// large enough for `largest`.
  PackedHeads alone(const HeadPieces& largest, std::int64_t group, std::int64_t place) const {
    PackedHeads own = *part;
    own.h0 = h;
    own.heads = 1;
    own.first_tile = place * group * largest.tiles;
    own.first_block = place * largest.blocks;
    own.first_panel = place * largest.panels;
    return own;
  }
};

/// Totals over the heads that are packed at the same time.
struct HeadTotals {
  std::int64_t parts = 0, heads = 0;
  std::int64_t tiles = 0, blocks = 0, panels = 0;

  /// Sets the totals for `places` slots that hold one head each, instead of a whole batch.
  void pack_one_each(const HeadPieces& largest, std::int64_t group, std::int64_t places) {
    tiles = places * group * largest.tiles;
    blocks = places * largest.blocks;
    panels = places * largest.panels;
  }
};

/// Summary of all key/value heads of a work list.
struct HeadSurvey {
  HeadPieces largest;        ///< largest number of pieces of any head
  double largest_bytes = 0;  ///< largest packed bytes of any head
  double all_bytes = 0;
};

/// Position in a work list (n) and head (h) at which the next batch begins.
struct HeadCursor {
  std::int64_t n = 0, h = 0;
  std::int64_t tile_blocks_before = 0;
};

/// Budget in bytes for the packed operands of key/value heads that are packed together; at least one head is packed.
/// The budget is three quarters of a 32 MiB third-level cache, from which all threads read (docs/design/forward.md).
inline constexpr double kPackedBudget_bytes = std::int64_t{24} << 20;

/// Cuts the key/value heads of the sequences of a work list, in order, into batches with packed operands that fit the
/// budget. A batch has at least one head. Plan provides:
///   p                           the problem;
///   list                        the work list;
///   tile_rows, kBlock, kPanel   the lengths into which a head is cut;
///   whole_heads                 true if each thread packs one head at a time, so that no budget applies;
///   head_bytes(part)            the packed size of one head of a part, in bytes.
template <class Plan>
class HeadBatches {
 public:
  explicit HeadBatches(const Plan& plan) : plan_(plan), p_(plan.p) {}

  /// Returns the next batch and advances `cursor`. Writes the batch's parts to `parts` unless null. At the end the
  /// batch has no parts.
  HeadTotals next(HeadCursor& cursor, PackedHeads* parts) const {
    HeadTotals batch;
    double left = plan_.whole_heads ? std::numeric_limits<double>::infinity() : kPackedBudget_bytes;
    while (p_.Hkv > 0 && !at_end(cursor) && batch.parts < kMostParts) {
      PackedHeads part = part_at(cursor);
      const double bytes = plan_.head_bytes(part);
      const double fit = bytes > 0 ? std::max(left, 0.0) / bytes : static_cast<double>(part.heads);
      if (fit < static_cast<double>(part.heads)) part.heads = static_cast<std::int64_t>(fit);
      if (part.heads == 0 && batch.parts > 0) return batch;
      part.heads = std::max<std::int64_t>(part.heads, 1);
      left -= bytes * static_cast<double>(part.heads);
      if (parts != nullptr) parts[batch.parts] = part;
      ++batch.parts;
      batch.heads += part.heads;
      batch.tiles += part.heads * p_.group * part.tiles;
      batch.blocks += part.heads * part.blocks;
      batch.panels += part.heads * part.panels;
      cursor.h = part.h0 + part.heads;
      if (cursor.h == p_.Hkv) cursor = {cursor.n + 1, 0, part.tile_blocks_before + part.tiles * part.blocks};
    }
    return batch;
  }

  bool at_end(const HeadCursor& cursor) const { return cursor.n >= plan_.list.size(); }

  HeadSurvey survey() const {
    HeadSurvey all;
    for (HeadCursor cursor; p_.Hkv > 0 && !at_end(cursor); ++cursor.n) {
      const PackedHeads part = part_at(cursor);
      const double bytes = plan_.head_bytes(part);
      all.largest.tiles = std::max(all.largest.tiles, part.tiles);
      all.largest.blocks = std::max(all.largest.blocks, part.blocks);
      all.largest.panels = std::max(all.largest.panels, part.panels);
      all.largest_bytes = std::max(all.largest_bytes, bytes);
      all.all_bytes += bytes * static_cast<double>(part.heads);
    }
    return all;
  }

  /// Returns the maximum of each total over all batches, and moves `cursor` to the end.
  HeadTotals most(HeadCursor& cursor) const {
    HeadTotals most;
    for (HeadTotals batch = next(cursor, nullptr); batch.parts > 0; batch = next(cursor, nullptr)) {
      most.parts = std::max(most.parts, batch.parts);
      most.heads = std::max(most.heads, batch.heads);
      most.tiles = std::max(most.tiles, batch.tiles);
      most.blocks = std::max(most.blocks, batch.blocks);
      most.panels = std::max(most.panels, batch.panels);
    }
    return most;
  }

 private:
  /// Limits the parts of a batch if heads need no packed memory. This bounds the memory of the parts and the time in
  /// which one thread creates them.
  static constexpr std::int64_t kMostParts = 4096;

  /// Returns all remaining heads of the cursor's sequence as one part.
  PackedHeads part_at(const HeadCursor& cursor) const {
    const ListedSequence listed = plan_.list[cursor.n];
    PackedHeads part;
    part.sequence = p_.sequence(listed.number);
    part.n = listed.number;
    part.h0 = cursor.h;
    part.heads = p_.Hkv - cursor.h;
    const auto pieces = [](std::int64_t length, std::int64_t piece) { return (length + piece - 1) / piece; };
    part.tiles = pieces(part.sequence.T, plan_.tile_rows);
    part.blocks = pieces(part.sequence.S, Plan::kBlock);
    part.panels = pieces(part.sequence.S, Plan::kPanel);
    part.tiles_before = listed.tiles_before;
    part.tile_blocks_before = cursor.tile_blocks_before;
    return part;
  }

  const Plan& plan_;
  const Problem& p_;
};

/// Sorts the parts of a batch in the order in which threads take them: longest keys first, so that the final wait is
/// short. Then numbers the heads and pieces of all parts.
inline void order_parts(PackedHeads* parts, std::int64_t count, std::int64_t group) {
  std::sort(parts, parts + count, [](const PackedHeads& a, const PackedHeads& b) {
    return a.sequence.S != b.sequence.S ? a.sequence.S > b.sequence.S : a.n < b.n;
  });
  HeadTotals before;
  for (PackedHeads* part = parts; part != parts + count; ++part) {
    part->first_head = before.heads;
    part->first_tile = before.tiles;
    part->first_block = before.blocks;
    part->first_panel = before.panels;
    before.heads += part->heads;
    before.tiles += part->heads * group * part->tiles;
    before.blocks += part->heads * part->blocks;
    before.panels += part->heads * part->panels;
  }
}

/// Current batch of a kernel, shared by its threads. The constructor makes the first batch, next() replaces it by the
/// following one, and stop() by an empty one. One thread calls these functions for all.
template <class Plan>
class HeadBatch : public HeadTotals {
 public:
  HeadBatch(const Plan& plan, PackedHeads* batch) : batches_(plan), heads_(batch), group_(plan.p.group) { next(); }

  void next() {
    static_cast<HeadTotals&>(*this) = batches_.next(cursor_, heads_);
    order_parts(heads_, parts, group_);
  }
  void stop() { static_cast<HeadTotals&>(*this) = {}; }
  /// Moves on to the next batch, or to an empty one if the call was cancelled.
  void next_unless(const Cancellation& cancellation) { cancellation.seen() ? stop() : next(); }
  bool is_last() const { return batches_.at_end(cursor_); }

 private:
  HeadBatches<Plan> batches_;
  HeadCursor cursor_;
  PackedHeads* heads_;
  std::int64_t group_;
};

/// Returns the owner of number `at` among `count` owners of consecutive ranges. Member `first` holds the first number
/// of a range.
template <class Holder>
const Holder& find_owner(const Holder* all, std::int64_t count, std::int64_t Holder::*first, std::int64_t at) {
  // Takes the last owner that begins at or before `at`, because an owner of an empty range begins where the next one
  // does.
  const auto before = [first](std::int64_t number, const Holder& each) { return number < each.*first; };
  return std::upper_bound(all, all + count, at, before)[-1];
}

/// Returns head number n of a batch as a task, or an empty task from batch.heads on.
inline HeadTask head_task_of(const PackedHeads* parts, const HeadTotals& batch, std::int64_t n) {
  if (n >= batch.heads) return {};
  const PackedHeads& part = find_owner(parts, batch.parts, &PackedHeads::first_head, n);
  return {&part, part.h0 + n - part.first_head};
}

/// One key block of a key/value head.
struct BlockTask {
  const PackedHeads* part = nullptr;
  std::int64_t h = 0, block = 0;
};

/// Returns the key block with number n in the batch.
inline BlockTask block_task_of(const PackedHeads* parts, const HeadTotals& batch, std::int64_t n) {
  const PackedHeads& part = find_owner(parts, batch.parts, &PackedHeads::first_block, n);
  const std::int64_t at = n - part.first_block;
  return {&part, part.h0 + at / part.blocks, at % part.blocks};
}

/// One query tile of query head g of the group of key/value head h.
struct TileTask {
  const PackedHeads* part = nullptr;
  std::int64_t h = 0, g = 0, tile = 0;
};

/// Returns the query tile with number n in the batch.
inline TileTask tile_task_of(const PackedHeads* parts, const HeadTotals& batch, std::int64_t group, std::int64_t n) {
  const PackedHeads& part = find_owner(parts, batch.parts, &PackedHeads::first_tile, n);
  const std::int64_t at = n - part.first_tile, head = at / part.tiles;
  return {&part, part.h0 + head / group, head % group, at % part.tiles};
}

}  // namespace headgate
