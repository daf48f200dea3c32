// SPDX-License-Identifier: Apache-2.0
#include "library/attention/cpu/common/visibility.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>

namespace headgate::testing {
namespace {

std::string words(const KeyRange& range) {
  return range.empty() ? "none" : std::to_string(range.begin) + " to " + std::to_string(range.end);
}

/// Returns the smallest range that holds each i of [begin, end) for which `is` returns true.
template <class Is>
KeyRange hull(std::int64_t begin, std::int64_t end, const Is& is) {
  KeyRange found;
  for (std::int64_t i = begin; i < end; ++i) {
    if (is(i)) found = {found.empty() ? i : found.begin, i + 1};
  }
  return found;
}

// Kernels write the weights of rows that see a key of a block, and read those that `queries` names. One row too many
// would be read before it is written.
TEST(Visibility, VisibleRanges_AnyMask_AreThoseOfTheDefinition) {
  std::mt19937 random(7);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int n = 0; n < 3000; ++n) {
    Problem problem;
    problem.window_left = pick(-6, 9);
    problem.window_right = pick(-6, 9);
    Sequence sequence;
    sequence.T = pick(1, 30);
    sequence.S = pick(1, 30);
    sequence.keys = pick(0, sequence.S);
    sequence.first_position = pick(-40, 40);
    const Visibility visibility(problem, sequence);
    const auto sees = [&](std::int64_t i, std::int64_t j) {
      const std::int64_t at = sequence.first_position + i;
      return j < sequence.keys && (problem.window_left == -1 || j >= at - problem.window_left) &&
             (problem.window_right == -1 || j <= at + problem.window_right);
    };
    for (std::int64_t i = 0; i < sequence.T; ++i) {
      const KeyRange row = hull(0, sequence.S, [&](std::int64_t j) { return sees(i, j); });
      ASSERT_EQ(words(visibility.row(i)), words(row)) << "query " << i << " of problem " << n;
    }
    const std::int64_t j0 = pick(0, sequence.S - 1), j1 = pick(j0 + 1, sequence.S + 8);
    const KeyRange queries = hull(0, sequence.T, [&](std::int64_t i) {
      return !hull(j0, j1, [&](std::int64_t j) { return sees(i, j); }).empty();
    });
    ASSERT_EQ(words(visibility.queries(j0, j1, sequence.T)), words(queries))
        << "keys " << j0 << " to " << j1 << " of problem " << n;
    const std::int64_t i0 = pick(0, sequence.T - 1), i1 = pick(i0 + 1, sequence.T);
    const KeyRange keys = hull(0, sequence.S, [&](std::int64_t j) {
      return !hull(i0, i1, [&](std::int64_t i) { return sees(i, j); }).empty();
    });
    ASSERT_EQ(words(visibility.rows(i0, i1)), words(keys)) << "queries " << i0 << " to " << i1 << " of problem " << n;
  }
}

}  // namespace
}  // namespace headgate::testing
