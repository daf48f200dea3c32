// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "library/attention/problem.hpp"

namespace headgate {

/// Keys [begin, end) of one row; both ends never decrease from one query to the next.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool empty() const { return begin >= end; }
};

/// What causality, window and key lengths leave visible to the queries of a sequence. Boolean masks come on top.
class Visibility {
 public:
  Visibility(const Problem& problem, const Sequence& sequence)
      : first_position_(sequence.first_position),
        keys_(sequence.keys),
        left_(clamped(problem.window_left)),
        right_(clamped(problem.window_right)) {
    // A window that ends before it begins shows no key.
    if (left_ != kNoWindow && right_ != kNoWindow && right_ < -left_) keys_ = 0;
  }

  KeyRange row(std::int64_t i) const {
    const std::int64_t at = first_position_ + i;
    const std::int64_t begin = left_ == kNoWindow ? 0 : std::clamp<std::int64_t>(at - left_, 0, keys_);
    const std::int64_t end = right_ == kNoWindow ? keys_ : std::clamp<std::int64_t>(at + right_ + 1, 0, keys_);
    return {begin, std::max(begin, end)};
  }

  /// Hull of the ranges of queries [i0, i1), i0 < i1.
  KeyRange rows(std::int64_t i0, std::int64_t i1) const {
    const KeyRange last = row(i1 - 1);
    return {std::min(row(i0).begin, last.end), last.end};
  }

  /// The keys of query i among columns [c0, c1) of the keys from j0 on, as columns.
  KeyRange columns(std::int64_t i, std::int64_t j0, std::int64_t c0, std::int64_t c1) const {
    const KeyRange seen = row(i);
    const std::int64_t begin = std::clamp(seen.begin - j0, c0, c1);
    return {begin, std::max(begin, std::clamp(seen.end - j0, c0, c1))};
  }

  /// Queries [begin, end) of [0, T) whose hull meets keys [j0, j1).
  KeyRange queries(std::int64_t j0, std::int64_t j1, std::int64_t T) const {
    // Row i sees some key below j1 iff at − left < j1, and some key from j0 on iff at + right ≥ j0.
    if (j0 >= std::min(j1, keys_)) return {};
    const std::int64_t begin = right_ == kNoWindow ? 0 : std::clamp<std::int64_t>(j0 - right_ - first_position_, 0, T);
    const std::int64_t end =
        left_ == kNoWindow ? T : std::clamp<std::int64_t>(std::min(j1, keys_) + left_ - first_position_, 0, T);
    return {begin, std::max(begin, end)};
  }

 private:
  /// A window this long hides nothing, and one that ends so far away everything; the clamp keeps sums of positions and
  /// windows from overflowing.
  static std::int64_t clamped(std::int64_t window) {
    return std::clamp(window, -3 * kMaxQueryOffset, 3 * kMaxQueryOffset);
  }

  std::int64_t first_position_, keys_, left_, right_;
};

}  // namespace headgate
