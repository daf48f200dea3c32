// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "library/attention/problem.hpp"
#include "library/core/sum_blocks.hpp"

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

}  // namespace headgate
