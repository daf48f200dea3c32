// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace headgate {

/// Prefetches the cache lines of evenly spaced rows, a few lines at a time, while the caller computes.
class RowPrefetch {
 public:
  RowPrefetch() = default;
  /// Describes `rows` rows of row_bytes bytes, stride_bytes apart. `steps` calls of step() prefetch all of them.
  RowPrefetch(const void* first, std::int64_t rows, std::int64_t row_bytes, std::int64_t stride_bytes,
              std::int64_t steps)
      : row_(static_cast<const char*>(first)),
        row_bytes_(row_bytes),
        stride_bytes_(stride_bytes),
        lines_((row_bytes + kLine_bytes - 1) / kLine_bytes * rows),
        lines_a_step_((lines_ + steps - 1) / std::max<std::int64_t>(steps, 1)) {}

  std::int64_t lines() const { return lines_; }
  void step() {
    for (std::int64_t n = std::min(lines_, lines_a_step_); n > 0; --n) prefetch_line();
  }
  /// Prefetches the next line. Requires lines() > 0.
  void prefetch_line() {
    __builtin_prefetch(row_ + in_row_, 0, 2);
    --lines_;
    in_row_ += kLine_bytes;
    if (in_row_ < row_bytes_) return;
    row_ += stride_bytes_;
    in_row_ = 0;
  }

 private:
  static constexpr std::int64_t kLine_bytes = 64;
  const char* row_ = nullptr;
  std::int64_t row_bytes_ = 0, stride_bytes_ = 0, in_row_ = 0, lines_ = 0, lines_a_step_ = 0;
};

/// Prefetches several blocks of rows, one block after another, a few lines at a time.
/// A core handles few outstanding cache lines, so that many prefetches at once would delay its other loads.
class PrefetchQueue {
 public:
  PrefetchQueue() = default;
  /// Constructs a queue of the lines of all `blocks`. `calls` calls of prefetch() prefetch all these lines.
  /// The array `blocks` must outlive the queue.
  PrefetchQueue(const RowPrefetch* blocks, std::int64_t count, std::int64_t calls)
      : next_(blocks), end_(blocks + count) {
    std::int64_t lines = 0;
    for (const RowPrefetch* block = next_; block != end_; ++block) lines += block->lines();
    lines_a_call_ = (lines + calls - 1) / std::max<std::int64_t>(calls, 1);
  }

  /// Prefetches the next lines. Does nothing if no line is left.
  void prefetch() {
    for (std::int64_t n = lines_a_call_; n > 0; --n) {
      if (!prefetch_line()) return;
    }
  }
  /// Prefetches all lines that are left.
  void prefetch_rest() {
    while (prefetch_line()) {
    }
  }

 private:
  bool prefetch_line() {
    while (block_.lines() == 0) {
      if (next_ == end_) return false;
      block_ = *next_++;
    }
    block_.prefetch_line();
    return true;
  }

  RowPrefetch block_;
  const RowPrefetch* next_ = nullptr;
  const RowPrefetch* end_ = nullptr;
  std::int64_t lines_a_call_ = 0;
};

}  // namespace headgate
