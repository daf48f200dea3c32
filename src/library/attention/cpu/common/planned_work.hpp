// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "library/core/workspace.hpp"

namespace headgate {

/// The planned work of a kernel on a list of sequences: its sizes are decided, and it waits for its memory.
class PlannedWork {
 public:
  virtual ~PlannedWork() = default;
  /// Returns the size of the memory that run() needs.
  virtual std::size_t bytes() const = 0;
  /// Computes the sequences in `memory`, aligned to Block::kAlign_bytes. Throws nothing but Cancelled.
  virtual void run(std::byte* memory) const = 0;
};

/// Room for the planned work of one kernel. A call has one for each row of its route table, on the stack.
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
