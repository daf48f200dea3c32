// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/problem.hpp"

namespace headgate {

/// Keys [begin, end) of one row; both ends never decrease from one query to the next.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool empty() const { return begin >= end; }
};

/// What causality, window and key lengths leave visible to queries of batch b. Boolean masks come on top.
class Visibility {
 public:
  Visibility(const Problem& problem, std::int64_t b)
      : shift_(problem.S - problem.T),
        keys_(problem.key_length(b)),
        // Beyond T + S a window limits nothing; the clamp keeps the sums below from overflowing.
        left_(problem.window_left < 0 ? -1 : std::min(problem.window_left, problem.T + problem.S)),
        right_(problem.window_right < 0 ? -1 : std::min(problem.window_right, problem.T + problem.S)) {}

  KeyRange row(std::int64_t i) const {
    const std::int64_t at = i + shift_;
    const std::int64_t begin = left_ < 0 ? 0 : std::clamp<std::int64_t>(at - left_, 0, keys_);
    const std::int64_t end = right_ < 0 ? keys_ : std::clamp<std::int64_t>(at + right_ + 1, 0, keys_);
    return {begin, std::max(begin, end)};
  }

  /// Hull of the ranges of queries [i0, i1), i0 < i1.
  KeyRange rows(std::int64_t i0, std::int64_t i1) const {
    const KeyRange last = row(i1 - 1);
    return {std::min(row(i0).begin, last.end), last.end};
  }

  /// Queries [begin, end) of [0, T) whose hull meets keys [j0, j1).
  KeyRange queries(std::int64_t j0, std::int64_t j1, std::int64_t T) const {
    // Row i sees some key below j1 iff i + shift − left < j1, and some key from j0 on iff i + shift + right ≥ j0.
    if (j0 >= std::min(j1, keys_)) return {};
    const std::int64_t begin = right_ < 0 ? 0 : std::clamp<std::int64_t>(j0 - right_ - shift_, 0, T);
    const std::int64_t end = left_ < 0 ? T : std::clamp<std::int64_t>(j1 + left_ - shift_, 0, T);
    return {begin, std::max(begin, end)};
  }

 private:
  std::int64_t shift_, keys_, left_, right_;
};

}  // namespace headgate
