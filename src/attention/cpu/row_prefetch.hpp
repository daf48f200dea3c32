// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace headgate {

/// Cache lines of evenly spaced rows to come, asked for a few at a time while others are worked on, so that memory is
/// never idle.
class RowPrefetch {
 public:
  RowPrefetch() = default;
  /// Rows of `row_bytes`, `stride_bytes` apart, over `steps` calls of step().
  RowPrefetch(const void* first, std::int64_t rows, std::int64_t row_bytes, std::int64_t stride_bytes,
              std::int64_t steps)
      : row_(static_cast<const char*>(first)),
        row_bytes_(row_bytes),
        stride_bytes_(stride_bytes),
        lines_((row_bytes + kLine_bytes - 1) / kLine_bytes * rows),
        lines_a_step_((lines_ + steps - 1) / std::max<std::int64_t>(steps, 1)) {}

  void step() {
    for (std::int64_t n = std::min(lines_, lines_a_step_); n > 0; --n) {
      __builtin_prefetch(row_ + in_row_, 0, 2);
      --lines_;
      in_row_ += kLine_bytes;
      if (in_row_ < row_bytes_) continue;
      row_ += stride_bytes_;
      in_row_ = 0;
    }
  }

 private:
  static constexpr std::int64_t kLine_bytes = 64;
  const char* row_ = nullptr;
  std::int64_t row_bytes_ = 0, stride_bytes_ = 0, in_row_ = 0, lines_ = 0, lines_a_step_ = 0;
};

}  // namespace headgate
