// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "library/attention/problem.hpp"

namespace headgate {

/// Keys [begin, end) that one query row sees. From one query to the next, neither `begin` nor `end` decreases.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool empty() const { return begin >= end; }
};

/// Computes which keys each query of a sequence sees, from causality, window and key lengths.
/// Boolean masks are not considered. They may hide more keys.
class Visibility {
 public:
  Visibility() = default;
  Visibility(const Problem& problem, const Sequence& sequence)
      : first_position_(sequence.first_position),
        keys_(sequence.keys),
        left_(clamped(problem.window_left)),
        right_(clamped(problem.window_right)) {
    // The window of a query at position p holds keys p − left … p + right.
    // It is empty if right < −left, for example with left = 2 and right = −3.
    if (left_ != kNoWindow && right_ != kNoWindow && right_ < -left_) keys_ = 0;
  }

  KeyRange row(std::int64_t i) const {
    const std::int64_t at = first_position_ + i;
    const std::int64_t begin = left_ == kNoWindow ? 0 : std::clamp<std::int64_t>(at - left_, 0, keys_);
    const std::int64_t end = right_ == kNoWindow ? keys_ : std::clamp<std::int64_t>(at + right_ + 1, 0, keys_);
    return {begin, std::max(begin, end)};
  }

  /// Returns the smallest range that contains the keys of all queries [i0, i1). Requires i0 < i1.
  KeyRange rows(std::int64_t i0, std::int64_t i1) const {
    const KeyRange last = row(i1 - 1);
    return {std::min(row(i0).begin, last.end), last.end};
  }

  /// Returns the columns in [c0, c1) whose keys query i sees. Column 0 is key j0.
  KeyRange columns(std::int64_t i, std::int64_t j0, std::int64_t c0, std::int64_t c1) const {
    const KeyRange seen = row(i);
    const std::int64_t begin = std::clamp(seen.begin - j0, c0, c1);
    return {begin, std::max(begin, std::clamp(seen.end - j0, c0, c1))};
  }

  /// Returns the queries [begin, end) in [0, T) that see at least one of the keys [j0, j1).
  KeyRange queries(std::int64_t j0, std::int64_t j1, std::int64_t T) const {
    // A query at position p sees a key below j1 if p − left < j1. It sees a key from j0 on if p + right ≥ j0.
    if (j0 >= std::min(j1, keys_)) return {};
    const std::int64_t begin = right_ == kNoWindow ? 0 : std::clamp<std::int64_t>(j0 - right_ - first_position_, 0, T);
    const std::int64_t end =
        left_ == kNoWindow ? T : std::clamp<std::int64_t>(std::min(j1, keys_) + left_ - first_position_, 0, T);
    return {begin, std::max(begin, end)};
  }

 private:
  /// Clamps one side of a window to ±3 · kMaxQueryOffset, so that sums of positions and windows cannot overflow.
  /// Clamping changes nothing: beyond these bounds, a window hides no key or every key.
  static std::int64_t clamped(std::int64_t window) {
    return std::clamp(window, -3 * kMaxQueryOffset, 3 * kMaxQueryOffset);
  }

  std::int64_t first_position_ = 0, keys_ = 0, left_ = 0, right_ = 0;
};

}  // namespace headgate
