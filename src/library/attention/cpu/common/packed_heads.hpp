// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "library/attention/cpu/common/work_list.hpp"
#include "library/attention/problem.hpp"
#include "library/core/cancellation.hpp"

namespace headgate {

// Kernels divide a work list into batches, a batch into parts, and a part into heads.
// A head is divided into query tiles and key blocks. Threads take heads, tiles and blocks as tasks:
//
//   Work list: the sequences that one kernel computes.
//   Batch: consecutive key/value heads of the work list. Their packed operands fit kPackedBudget_bytes.
//   Part: the key/value heads of one sequence in a batch.
//   Head: a key/value head, with the `group` query heads that read it.
//   Tile: some queries of one query head.
//   Block: some keys of a key/value head. A block is packed as panels of keys.
//
// Tiles, blocks and panels are numbered within a batch.
// PackedHeads::first_tile, first_block and first_panel are the smallest numbers in a part.
// find_owner() returns the part to which a number belongs.
// head_task_of(), block_task_of() and tile_task_of() return the task with a number.

/// Numbers of parts, heads, tiles, blocks and panels (see the top of this file), in one head or several heads.
struct HeadCounts {
  std::int64_t parts = 0, heads = 0;
  /// Numbers of query tiles of all query heads, and of key blocks of all key/value heads.
  std::int64_t tiles = 0, blocks = 0;
  std::int64_t panels = 0;  ///< key panels of all key/value heads

  void add(const HeadCounts& other) {
    for (const auto count : kCounts) this->*count += other.*count;
  }
  void raise_to(const HeadCounts& other) {
    for (const auto count : kCounts) this->*count = std::max(this->*count, other.*count);
  }

  /// Sets the numbers of tiles, blocks and panels to those of `buffers` buffers. Each buffer holds one key/value head.
  /// `capacity` is the capacity of one buffer.
  void set_head_buffers(const HeadCounts& capacity, std::int64_t group, std::int64_t buffers) {
    tiles = buffers * group * capacity.tiles;
    blocks = buffers * capacity.blocks;
    panels = buffers * capacity.panels;
  }

 private:
  static constexpr std::int64_t HeadCounts::*kCounts[] = {&HeadCounts::parts, &HeadCounts::heads, &HeadCounts::tiles,
                                                          &HeadCounts::blocks, &HeadCounts::panels};
};

/// One part of a batch: key/value heads of one sequence. Parts of the same batch belong to different sequences.
struct PackedHeads {
  Sequence sequence;
  std::int64_t n = 0;                  ///< index of the sequence in the call
  std::int64_t h0 = 0, heads = 0;      ///< key/value heads h0 … h0 + heads
  std::int64_t tiles = 0, blocks = 0;  ///< number of tiles of one query head; number of blocks of one key/value head
  std::int64_t panels = 0;             ///< number of key panels of one key/value head
  std::int64_t tiles_before = 0;       ///< number of tiles of one query head in all earlier sequences of the call
  /// number of (query tile, key block) pairs of one head, summed over earlier sequences of the work list
  std::int64_t tile_blocks_before = 0;
  // Numbers of the first head, tile, block and panel of this part within the batch.
  // Tiles are numbered by part, then query head, then tile.
  // Blocks and panels are numbered by part, then key/value head.
  std::int64_t first_head = 0, first_tile = 0, first_block = 0, first_panel = 0;

  /// Returns the numbers of heads, tiles, blocks and panels in this part.
  HeadCounts totals(std::int64_t group) const {
    return {1, heads, heads * group * tiles, heads * blocks, heads * panels};
  }

  /// These functions return the number, within the batch, of
  ///   the first panel of key/value head h;
  ///   the first block of key/value head h;
  ///   the first tile of the g-th query head that reads key/value head h.
  std::int64_t panel_of(std::int64_t h) const { return first_panel + (h - h0) * panels; }
  std::int64_t block_of(std::int64_t h) const { return first_block + (h - h0) * blocks; }
  std::int64_t tile_of(std::int64_t h, std::int64_t group, std::int64_t g) const {
    return first_tile + ((h - h0) * group + g) * tiles;
  }
};

/// Task of one thread on key/value head h of a part. The task is one of:
///   the whole head;
///   one of several equal pieces of the head;
///   one key block;
///   one query tile of the g-th query head that reads head h.
struct HeadTask {
  const PackedHeads* part = nullptr;  ///< null if there is no task
  std::int64_t h = 0, g = 0;
  std::int64_t piece = 0, pieces = 1;  ///< index of the block, tile or piece; number of pieces

  /// Returns a part that consists of this head alone. Its operands are in buffer number `buffer`.
  /// `capacity` is the capacity of one buffer.
  PackedHeads as_part(const HeadCounts& capacity, std::int64_t group, std::int64_t buffer) const {
    PackedHeads own = *part;
    own.h0 = h;
    own.heads = 1;
    own.first_tile = buffer * group * capacity.tiles;
    own.first_block = buffer * capacity.blocks;
    own.first_panel = buffer * capacity.panels;
    return own;
  }
};

/// Totals and maxima over all key/value heads of a work list.
struct HeadSurvey {
  HeadCounts max_head_counts;    ///< largest numbers of tiles, blocks and panels of any head
  double max_head_bytes = 0;     ///< packed bytes of the largest head
  double total_bytes = 0;        ///< packed bytes of all heads
  std::int64_t tile_blocks = 0;  ///< number of (query tile, key block) pairs of one head, summed over all sequences
};

/// Limit in bytes of the packed operands of one batch. A head that exceeds it is a batch of its own.
/// The limit is three quarters of a 32 MiB third-level cache, from which all threads read (docs/design/forward.md).
inline constexpr double kPackedBudget_bytes = std::int64_t{24} << 20;

/// Cuts the key/value heads of a work list, in order, into batches whose packed operands fit kPackedBudget_bytes.
/// A batch has at least one head. Plan has these members:
///   p: the problem.
///   list: the work list.
///   tile_rows, kBlock, kPanel: the lengths of a query tile, key block and panel.
///   whole_heads: true if each thread packs one head at a time. Batches then have no size limit.
///   head_bytes(part): the packed bytes of one head of a part.
template <class Plan>
class HeadBatches {
 public:
  explicit HeadBatches(const Plan& plan) : plan_(plan), p_(plan.p) {}

  /// Start of the next batch: head h of entry n of the work list.
  struct Cursor {
    std::int64_t n = 0, h = 0;
    std::int64_t tile_blocks_before = 0;
  };

  /// Returns the counts of the next batch, and moves `cursor` past it. Writes the batch's parts to `parts` unless null.
  /// At the end of the list, returns a batch without parts.
  HeadCounts next(Cursor& cursor, PackedHeads* parts) const {
    HeadCounts batch;
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
      batch.add(part.totals(p_.group));
      cursor.h = part.h0 + part.heads;
      if (cursor.h == p_.Hkv) cursor = {cursor.n + 1, 0, part.tile_blocks_before + part.tiles * part.blocks};
    }
    return batch;
  }

  bool at_end(const Cursor& cursor) const { return cursor.n >= plan_.list.size(); }

  HeadSurvey survey() const {
    HeadSurvey all;
    for (Cursor cursor; p_.Hkv > 0 && !at_end(cursor); ++cursor.n) {
      const PackedHeads part = part_at(cursor);
      const double bytes = plan_.head_bytes(part);
      all.max_head_counts.raise_to({1, 1, part.tiles, part.blocks, part.panels});
      all.max_head_bytes = std::max(all.max_head_bytes, bytes);
      all.total_bytes += bytes * static_cast<double>(part.heads);
      all.tile_blocks += part.tiles * part.blocks;
    }
    return all;
  }

  /// Returns the largest number of parts in any batch, and likewise of heads, tiles, blocks and panels.
  HeadCounts max_batch_counts() const {
    HeadCounts maxima;
    Cursor cursor;
    for (HeadCounts batch = next(cursor, nullptr); batch.parts > 0; batch = next(cursor, nullptr))
      maxima.raise_to(batch);
    return maxima;
  }

 private:
  /// Largest number of parts of a batch. It limits the memory for parts, and the time in which one thread creates them.
  /// Without this limit, heads that need no packed memory would all be in one batch.
  static constexpr std::int64_t kMostParts = 4096;

  /// Returns one part with the remaining heads of the cursor's sequence.
  PackedHeads part_at(const Cursor& cursor) const {
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

/// Sorts the parts of a batch in the order in which threads take them, and numbers their heads, tiles, blocks and
/// panels.
/// Parts with most keys come first, so that threads finish at about the same time.
inline void order_parts(PackedHeads* parts, std::int64_t count, std::int64_t group) {
  std::sort(parts, parts + count, [](const PackedHeads& a, const PackedHeads& b) {
    return a.sequence.S != b.sequence.S ? a.sequence.S > b.sequence.S : a.n < b.n;
  });
  HeadCounts before;
  for (PackedHeads* part = parts; part != parts + count; ++part) {
    part->first_head = before.heads;
    part->first_tile = before.tiles;
    part->first_block = before.blocks;
    part->first_panel = before.panels;
    before.add(part->totals(group));
  }
}

/// Current batch of a kernel, shared by the kernel's threads.
/// Only one thread at a time may call functions that change the batch.
template <class Plan>
class HeadBatch : public HeadCounts {
 public:
  HeadBatch(const Plan& plan, PackedHeads* batch) : batches_(plan), heads_(batch), group_(plan.p.group) { next(); }

  void next() {
    static_cast<HeadCounts&>(*this) = batches_.next(cursor_, heads_);
    order_parts(heads_, parts, group_);
  }
  void stop() { static_cast<HeadCounts&>(*this) = {}; }
  /// Moves on to the next batch. If the call was cancelled, sets an empty batch, which ends the loop over batches.
  void next_unless(const Cancellation& cancellation) { cancellation.seen() ? stop() : next(); }
  bool is_last() const { return batches_.at_end(cursor_); }

 private:
  HeadBatches<Plan> batches_;
  typename HeadBatches<Plan>::Cursor cursor_;
  PackedHeads* heads_;
  std::int64_t group_;
};

/// Returns the element of `all` whose range contains number `at`.
/// An element's range begins at its member `first`, and ends where the range of the next element begins.
template <class Holder>
const Holder& find_owner(const Holder* all, std::int64_t count, std::int64_t Holder::*first, std::int64_t at) {
  // Selects the last element whose `first` is at most `at`. Earlier elements with the same `first` have empty ranges.
  const auto before = [first](std::int64_t number, const Holder& each) { return number < each.*first; };
  return std::upper_bound(all, all + count, at, before)[-1];
}

/// Returns the task for head number n of the batch. Returns an empty task if n ≥ batch.heads.
inline HeadTask head_task_of(const PackedHeads* parts, const HeadCounts& batch, std::int64_t n) {
  if (n >= batch.heads) return {};
  const PackedHeads& part = find_owner(parts, batch.parts, &PackedHeads::first_head, n);
  return {.part = &part, .h = part.h0 + n - part.first_head};
}

/// Returns the task for key block number n of the batch.
inline HeadTask block_task_of(const PackedHeads* parts, const HeadCounts& batch, std::int64_t n) {
  const PackedHeads& part = find_owner(parts, batch.parts, &PackedHeads::first_block, n);
  const std::int64_t at = n - part.first_block;
  return {.part = &part, .h = part.h0 + at / part.blocks, .piece = at % part.blocks};
}

/// Returns the task for query tile number n of the batch.
inline HeadTask tile_task_of(const PackedHeads* parts, const HeadCounts& batch, std::int64_t group, std::int64_t n) {
  const PackedHeads& part = find_owner(parts, batch.parts, &PackedHeads::first_tile, n);
  const std::int64_t at = n - part.first_tile, head = at / part.tiles;
  return {.part = &part, .h = part.h0 + head / group, .g = head % group, .piece = at % part.tiles};
}

}  // namespace headgate
