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
  std::int64_t number = 0;        ///< number of the sequence in the problem
  std::int64_t tiles_before = 0;  ///< number of query tiles (kQueryTile queries) of one head in all earlier sequences
};

/// Returns how many tiles of kQueryTile queries hold T queries.
inline std::int64_t query_tiles(std::int64_t T) { return (T + kQueryTile - 1) / kQueryTile; }

/// The sequences that one kernel computes, in ascending order of their numbers.
class WorkList {
 public:
  WorkList() = default;
  WorkList(const ListedSequence* entries, std::int64_t size) : entries_(entries), size_(size) {}
  /// Lists all sequences of a problem. ListedSequence::tiles_before stays 0 for a packed batch.
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

/// A kernel's work on a list of sequences, planned but not yet run: the sizes of the work are known, and the memory of
/// run() is not yet allocated.
class PlannedWork {
 public:
  virtual ~PlannedWork() = default;
  /// Returns how many bytes of memory run() needs.
  virtual std::size_t bytes() const = 0;
  /// Computes the sequences, with buffers in `memory`, which is aligned to Block::kAlign_bytes.
  /// Throws nothing but Cancelled.
  virtual void run(std::byte* memory) const = 0;
};

/// Storage for the planned work of one kernel. Each call has a WorkSlot on its stack for every row of its route table.
class WorkSlot {
 public:
  WorkSlot() = default;
  WorkSlot(const WorkSlot&) = delete;
  WorkSlot& operator=(const WorkSlot&) = delete;
  ~WorkSlot() {
    if (work_ != nullptr) work_->~PlannedWork();
  }

  /// Constructs Work(args…). Throws std::bad_alloc if the number of bytes that its run() needs exceeds 63 bits.
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

/// Planned work of a kernel that consists of a Plan, Buffers(workspace, plan), and a function kRun(plan, buffers).
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
