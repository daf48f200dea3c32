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

/// A sequence in a work list.
struct ListedSequence {
  std::int64_t number = 0;        ///< of the sequence in its problem
  std::int64_t tiles_before = 0;  ///< tiles of kQueryTile queries of one head in all earlier sequences of the problem
};

/// Number of tiles of kQueryTile queries that T queries are cut into.
inline std::int64_t query_tiles(std::int64_t T) { return (T + kQueryTile - 1) / kQueryTile; }

/// The sequences that one kernel computes, in ascending order of their numbers.
class WorkList {
 public:
  WorkList() = default;
  WorkList(const ListedSequence* entries, std::int64_t size) : entries_(entries), size_(size) {}
  /// Lists all sequences of a problem. Of a packed batch without tiles_before, which are 0.
  explicit WorkList(const Problem& problem)
      : size_(problem.sequences()), tiles_(problem.packed() ? 0 : query_tiles(problem.T)) {}

  std::int64_t size() const { return size_; }
  ListedSequence operator[](std::int64_t i) const {
    return entries_ == nullptr ? ListedSequence{i, i * tiles_} : entries_[i];
  }

 private:
  const ListedSequence* entries_ = nullptr;
  std::int64_t size_ = 0;
  std::int64_t tiles_ = 0;  // query tiles of each sequence, if entries_ is null
};

/// Returns the largest T and the largest S of the listed sequences.
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

/// The planned work of a kernel on a list of sequences: its sizes are decided, and it waits for its memory.
class PlannedWork {
 public:
  virtual ~PlannedWork() = default;
  /// Returns how many bytes of memory run() needs.
  virtual std::size_t bytes() const = 0;
  /// Computes the sequences in `memory`, aligned to Block::kAlign_bytes. Throws nothing but Cancelled.
  virtual void run(std::byte* memory) const = 0;
};

/// Storage for the planned work of one kernel. A call has one on its stack for each row of its route table.
class WorkSlot {
 public:
  WorkSlot() = default;
  WorkSlot(const WorkSlot&) = delete;
  WorkSlot& operator=(const WorkSlot&) = delete;
  ~WorkSlot() {
    if (work_ != nullptr) work_->~PlannedWork();
  }

  /// Constructs Work(args…). Throws std::bad_alloc where its memory cannot be counted in 63 bits.
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

/// The planned work of a kernel that consists of a plan, made from the problem, of Buffers(workspace, plan), and of a
/// function that computes with both.
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
