// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/problem.hpp"
#include "library/core/cancellation.hpp"

namespace headgate {

/// What one head is cut into.
struct HeadPieces {
  std::int64_t tiles = 0, blocks = 0;  ///< query tiles of a query head, key blocks of a key/value head
  std::int64_t panels = 0;             ///< of a key/value head's keys
};

/// Key/value heads of one sequence that are packed packed at the same time as others.
struct PackedHeads {
  Sequence sequence;
  std::int64_t n = 0;                   ///< the sequence's number
  std::int64_t h0 = 0, heads = 0;       ///< key/value heads h0 … h0 + heads
  std::int64_t tiles = 0, blocks = 0;   ///< query tiles of a query head, key blocks of a key/value head
  std::int64_t panels = 0;              ///< of a key/value head's keys
  std::int64_t tiles_before = 0;        ///< tiles of a query head in all earlier sequences of the problem
  std::int64_t tile_blocks_before = 0;  ///< tiles · blocks of a head in the earlier sequences of the list
  // What is packed is numbered through all parts of the batch: query tiles by part, query head, tile; key blocks and
  // panels by part, key/value head, block or panel. These are the first numbers of the part.
  std::int64_t first_head = 0, first_tile = 0, first_block = 0, first_panel = 0;

  /// The first panel and block of key/value head h, the first tile of query head g of its group.
  std::int64_t panel_of(std::int64_t h) const { return first_panel + (h - h0) * panels; }
  std::int64_t block_of(std::int64_t h) const { return first_block + (h - h0) * blocks; }
  std::int64_t tile_of(std::int64_t h, std::int64_t group, std::int64_t g) const {
    return first_tile + ((h - h0) * group + g) * tiles;
  }
};

/// One key/value head of a part, or one of the pieces that its queries are cut into.
struct HeadTask {
  const PackedHeads* part = nullptr;  ///< null: none
  std::int64_t h = 0;
  std::int64_t piece = 0, pieces = 1;

  /// As a part of its own, in the `place`-th of places that each have room for `largest`.
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

/// What heads that are packed at the same time add up to.
struct HeadTotals {
  std::int64_t parts = 0, heads = 0;
  std::int64_t tiles = 0, blocks = 0, panels = 0;

  /// Instead of all at the same time, one head in each of `places`.
  void pack_one_each(const HeadPieces& largest, std::int64_t group, std::int64_t places) {
    tiles = places * group * largest.tiles;
    blocks = places * largest.blocks;
    panels = places * largest.panels;
  }
};

/// Sums over all key/value heads of a list.
struct HeadSurvey {
  HeadPieces largest;        ///< the most of each that a head has
  double largest_bytes = 0;  ///< packed, of a head
  double all_bytes = 0;
};

/// An index into a work list and a key/value head of that sequence, to go on with.
struct HeadCursor {
  std::int64_t n = 0, h = 0;
  std::int64_t tile_blocks_before = 0;
};

/// Packed operands of as many key/value heads as fit here are packed at a time, at least one: three quarters of a
/// third-level cache of 32 MiB, from which all threads read them (docs/design/forward.md).
inline constexpr double kPackedBudget_bytes = std::int64_t{24} << 20;

/// Cuts the key/value heads of the sequences of a list, in their order, into batches whose packed operands fit the
/// budget, at least one head each. Plan has the problem p; the list; tile_rows, kBlock and kPanel, the lengths at which
/// a head is cut; whole_heads, whether threads hold a head at a time, so that no budget applies; and head_bytes(part),
/// the packed size of one head of a part.
template <class Plan>
class HeadBatches {
 public:
  explicit HeadBatches(const Plan& plan) : plan_(plan), p_(plan.p) {}

  /// Goes on to the next batch, whose parts are put into `parts` unless it is null; no parts at the end.
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

  /// For each measure the most that a batch has. `cursor` goes on to the end.
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
  /// Bounds the memory of the parts, and the time in which one thread makes them, where heads take no memory.
  static constexpr std::int64_t kMostParts = 4096;

  /// All heads that the sequence has left.
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

/// Puts the parts of a batch in the order in which threads take them, longest keys first, so that what threads wait for
/// at the end is short; then numbers what they hold.
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

/// The batch that the threads of a kernel have at hand, and what it holds. Made with the first one; next() goes on to
/// the one behind it, and stop() leaves an empty one. One thread calls them for all.
template <class Plan>
class HeadBatch : public HeadTotals {
 public:
  HeadBatch(const Plan& plan, PackedHeads* batch) : batches_(plan), heads_(batch), group_(plan.p.group) { next(); }

  void next() {
    static_cast<HeadTotals&>(*this) = batches_.next(cursor_, heads_);
    order_parts(heads_, parts, group_);
  }
  void stop() { static_cast<HeadTotals&>(*this) = {}; }
  /// Goes on to the next batch, or to none if the call is cancelled.
  void next_unless(const Cancellation& cancellation) { cancellation.seen() ? stop() : next(); }
  bool is_last() const { return batches_.at_end(cursor_); }

 private:
  HeadBatches<Plan> batches_;
  HeadCursor cursor_;
  PackedHeads* heads_;
  std::int64_t group_;
};

/// Of `count` things that number what they hold one after the other, from member `first` on, the one with number `at`.
template <class Holder>
const Holder& find_owner(const Holder* all, std::int64_t count, std::int64_t Holder::*first, std::int64_t at) {
  // One that holds nothing shares its first number with the next: the last one that begins at or before `at`.
  const auto before = [first](std::int64_t number, const Holder& each) { return number < each.*first; };
  return std::upper_bound(all, all + count, at, before)[-1];
}

/// The head of a batch with number n; none from batch.heads on.
inline HeadTask head_task_of(const PackedHeads* parts, const HeadTotals& batch, std::int64_t n) {
  if (n >= batch.heads) return {};
  const PackedHeads& part = find_owner(parts, batch.parts, &PackedHeads::first_head, n);
  return {&part, part.h0 + n - part.first_head};
}

}  // namespace headgate
