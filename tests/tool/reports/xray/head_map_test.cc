// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/head_map.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "models/decoder/tiny.hpp"
#include "tool/reports/xray/decoded.hpp"

namespace headgate::xray {
namespace {

/// Weights of T queries in a window, drawn; and a map of them.
struct Sample {
  std::int64_t T, window;
  std::vector<std::vector<float>> rows;  // [query][key]
  HeadMap map;

  Sample(std::int64_t tokens, std::int64_t cells, std::int64_t window_in)
      : T(tokens), window(window_in), map(tokens, cells) {
    models::Draws draws(7);
    for (std::int64_t i = 0; i < T; ++i) {
      rows.emplace_back(static_cast<std::size_t>(T));
      for (std::int64_t j = first(i); j <= i; ++j) {
        rows.back()[static_cast<std::size_t>(j)] = static_cast<float>(std::abs(draws.symmetric()));
      }
      map.add_row(i, first(i), rows.back().data() + first(i));
    }
  }
  std::int64_t first(std::int64_t i) const { return window > 0 ? std::max<std::int64_t>(0, i - window + 1) : 0; }

  /// The mean over pairs (query, key) of these ranges that see each other.
  double mean(std::int64_t i0, std::int64_t i1, std::int64_t j0, std::int64_t j1) const {
    double sum = 0.0, count = 0.0;
    for (std::int64_t i = i0; i < i1; ++i) {
      for (std::int64_t j = j0; j < j1; ++j) {
        if (j > i || j < first(i)) continue;
        sum += static_cast<double>(rows[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)]);
        count += 1.0;
      }
    }
    return count > 0.0 ? sum / count : 0.0;
  }
};

void check(std::int64_t T, std::int64_t cells, std::int64_t window) {
  const Sample sample(T, cells, window);
  const std::int64_t M = std::min(T, cells);
  const std::vector<double> got = sample.map.cells(), received = sample.map.received();
  ASSERT_EQ(got.size(), static_cast<std::size_t>(M * (M + 1) / 2));
  std::size_t at = 0;
  for (std::int64_t r = 0; r < M; ++r) {
    for (std::int64_t c = 0; c <= r; ++c) {
      const double wanted = sample.mean(r * T / M, (r + 1) * T / M, c * T / M, (c + 1) * T / M);
      EXPECT_NEAR(got[at++], wanted, 1e-14) << T << " tokens, cell " << r << ", " << c;
    }
  }
  ASSERT_EQ(received.size(), static_cast<std::size_t>(T));
  for (std::int64_t j = 0; j < T; ++j) {
    EXPECT_NEAR(received[static_cast<std::size_t>(j)], sample.mean(0, T, j, j + 1), 1e-14) << "key " << j;
  }
}

TEST(HeadMap, Map_AnySize_IsTheMeanOverVisiblePairs) {
  check(1, 96, 0);
  check(5, 8, 0);
  check(8, 8, 3);
  check(50, 8, 0);
  check(50, 7, 6);
}

TEST(HeadMap, Map_OneCell_HoldsAllPairs) { check(9, 1, 0); }

TEST(Largest, Largest_SeveralCells_AreInOrder) {
  EXPECT_EQ(largest({0.5, 2.0, 0.5, 3.0}, 3), (std::vector<std::size_t>{3, 1, 0}));
  EXPECT_EQ(largest({1.0, 1.0}, 5), (std::vector<std::size_t>{0, 1}));
  EXPECT_TRUE(largest({}, 2).empty());
}

TEST(Bytes, Bytes_OfValues_AreRoundedAndClamped) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(decoded(as_bytes({0.0, 1.0, 0.5, -3.0, 7.0, nan, 0.1})),
            (std::vector<std::uint8_t>{0, 255, 128, 0, 255, 0, 26}));
  EXPECT_EQ(decoded(as_roots({0.25, 1e-4, 1.0, 4.0, -1.0})), (std::vector<std::uint8_t>{128, 3, 255, 255, 0}));
  EXPECT_EQ(as_bytes({}), "");
  EXPECT_EQ(as_bytes({1.0}), "/w==");
  EXPECT_EQ(as_bytes({1.0, 0.0}), "/wA=");
  EXPECT_EQ(as_bytes({1.0, 0.0, 1.0}), "/wD/");
}

}  // namespace
}  // namespace headgate::xray
