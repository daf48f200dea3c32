// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "library/attention/problem.hpp"
#include "library/core/sum_blocks.hpp"
#include "library/core/workspace.hpp"

namespace headgate {

/// One sequence of a work list.
struct ListedSequence {
  std::int64_t number = 0;        ///< index of the sequence in the problem
  std::int64_t tiles_before = 0;  ///< number of query tiles (kQueryTile queries) of one head in all earlier sequences
};

/// Returns the number of tiles of kQueryTile queries that T queries fill.
inline std::int64_t query_tiles(std::int64_t T) { return (T + kQueryTile - 1) / kQueryTile; }

/// The sequences that one kernel computes, in ascending order of their numbers.
class WorkList {
 public:
  WorkList() = default;
  WorkList(const ListedSequence* entries, std::int64_t size) : entries_(entries), size_(size) {}
  /// Lists all sequences of a problem. In a packed batch, ListedSequence::tiles_before is 0 for all of them.
  explicit WorkList(const Problem& problem)
      : size_(problem.sequences()), tiles_(problem.packed() ? 0 : query_tiles(problem.T)) {}

  std::int64_t size() const { return size_; }
  ListedSequence operator[](std::int64_t i) const {
    return entries_ == nullptr ? ListedSequence{i, i * tiles_} : entries_[i];
  }

 private:
  const ListedSequence* entries_ = nullptr;
  std::int64_t size_ = 0;
  std::int64_t tiles_ = 0;  // number of query tiles per sequence; used if entries_ is null
};

/// Returns a sequence whose T and S are the largest T and the largest S of the listed sequences.
inline Sequence longest_sequence(const Problem& p, const WorkList& list) {
  Sequence longest;
  for (std::int64_t i = 0; i < list.size(); ++i) {
    const Sequence each = p.sequence(list[i].number);
    longest.T = std::max(longest.T, each.T);
    longest.S = std::max(longest.S, each.S);
    if (!p.packed()) break;
  }
  return longest;
}

/// Plan of a kernel's work on a list of sequences. The memory that run() needs is known, but not yet allocated.
class PlannedWork {
 public:
  virtual ~PlannedWork() = default;
  /// Returns how many bytes of memory run() needs.
  virtual std::size_t bytes() const = 0;
  /// Computes the sequences in buffers in `memory`, which must be aligned to Block::kAlign_bytes. Throws only
  /// Cancelled.
  virtual void run(std::byte* memory) const = 0;
};

/// Storage for the planned work of one kernel. A call has one WorkSlot on its stack per kernel of its route table.
class WorkSlot {
 public:
  WorkSlot() = default;
  WorkSlot(const WorkSlot&) = delete;
  WorkSlot& operator=(const WorkSlot&) = delete;
  ~WorkSlot() {
    if (work_ != nullptr) work_->~PlannedWork();
  }

  /// Constructs Work(args…). Throws std::bad_alloc if the number of bytes for its run() does not fit in 63 bits.
  template <class Work, class... Args>
  void emplace(const Args&... args) {
    static_assert(sizeof(Work) <= kRoom_bytes);
    static_assert(alignof(Work) <= alignof(std::max_align_t));
    work_ = ::new (static_cast<void*>(room_)) Work(args...);
  }

  const PlannedWork* operator->() const { return work_; }
  explicit operator bool() const { return work_ != nullptr; }

 private:
  static constexpr std::size_t kRoom_bytes = 1024;

  alignas(std::max_align_t) std::byte room_[kRoom_bytes];
  PlannedWork* work_ = nullptr;
};

/// Implements PlannedWork with a plan, its buffers, and the function kRun(plan, buffers).
/// The buffers are constructed as Buffers(workspace, plan).
template <class Plan, class Buffers, void kRun(const Plan&, const Buffers&)>
class PlannedKernel final : public PlannedWork {
 public:
  template <class... Args>
  explicit PlannedKernel(const Args&... args) : plan_(args...), bytes_(count_bytes<Buffers>(plan_)) {}

  std::size_t bytes() const override { return bytes_; }
  void run(std::byte* memory) const override { kRun(plan_, place_buffers<Buffers>(memory, plan_)); }

 private:
  Plan plan_;
  std::size_t bytes_;
};

}  // namespace headgate
