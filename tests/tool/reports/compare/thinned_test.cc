// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/compare/thinned.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "models/train/metrics_record.hpp"

namespace headgate::compare {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
using Places = std::vector<std::size_t>;

train::Curve curve_of(const std::vector<double>& values) {
  train::Curve out{&train::kStepLoss, {}, values};
  for (std::size_t i = 0; i < values.size(); ++i) out.steps.push_back(static_cast<std::int64_t>(i) + 1);
  return out;
}

TEST(Thinned, Curve_Short_IsKeptWhole) {
  EXPECT_EQ(thinned(curve_of({3, 2, 1}), 4), (Places{0, 1, 2}));
  EXPECT_EQ(thinned(curve_of({4, 3, 2, 1}), 4), (Places{0, 1, 2, 3}));
}

TEST(Thinned, Curve_Long_KeepsEndsAndExtremesOfEachPart) {
  // Ends, and two parts: 1 5 2 | 7 0 3.
  EXPECT_EQ(thinned(curve_of({9, 1, 5, 2, 7, 0, 3, 8}), 6), (Places{0, 1, 2, 4, 5, 7}));
  EXPECT_EQ(thinned(curve_of({9, 1, 5, 2, 7, 0, 3, 8}), 4), (Places{0, 4, 5, 7}));
  EXPECT_EQ(thinned(curve_of({9, kNaN, 5, kNaN, 8}), 4), (Places{0, 1, 2, 4})) << "a gap stays one";
}

TEST(Thinned, Curve_AnyLength_HasNoMorePointsThanWantedAndKeepsSpikes) {
  std::vector<double> values(10007, 1.0);
  values[5001] = 50.0;
  values[7919] = -50.0;
  for (const std::size_t most : {4U, 5U, 100U, 1001U}) {
    const Places places = thinned(curve_of(values), most);
    EXPECT_LE(places.size(), most);
    EXPECT_EQ(std::adjacent_find(places.begin(), places.end(), std::greater_equal<>()), places.end()) << "increasing";
    for (const std::size_t wanted : {0U, 5001U, 7919U, 10006U}) {
      EXPECT_TRUE(std::binary_search(places.begin(), places.end(), wanted)) << wanted << " of " << most;
    }
  }
}

TEST(Thinned, Curve_WithNaN_KeepsExtremesAndGaps) {
  std::mt19937 rng(3);
  for (int run = 0; run < 500; ++run) {
    const std::size_t count = 5 + rng() % 500, most = 4 + rng() % 60;
    const double gaps = std::array{0.0, 0.02, 0.2, 0.9, 1.0}[rng() % 5];
    std::vector<double> values(count);
    for (double& value : values) {
      value = std::bernoulli_distribution(gaps)(rng) ? kNaN : std::normal_distribution<>()(rng);
    }
    const Places places = thinned(curve_of(values), most);
    ASSERT_LE(places.size(), most);
    ASSERT_EQ(std::adjacent_find(places.begin(), places.end(), std::greater_equal<>()), places.end()) << "increasing";
    ASSERT_EQ(places.front(), 0U);
    ASSERT_EQ(places.back(), count - 1);
    // Each number has one that is kept within a part of it and is as low, and one that is as high.
    const std::size_t part = (count - 2) / std::max<std::size_t>(1, (most - 2) / 3) + 1;
    for (std::size_t i = 0; i < count; ++i) {
      const auto has = [&](auto fits) {
        return std::any_of(places.begin(), places.end(), [&](std::size_t at) {
          return at < i + part && i < at + part && fits(values[at], values[i]);
        });
      };
      const bool kept = std::isnan(values[i]) ? most == 4 || has([](double at, double) { return std::isnan(at); })
                                              : has(std::less_equal<>()) && has(std::greater_equal<>());
      ASSERT_TRUE(kept) << values[i] << " at " << i << " of " << count << ", most " << most << ", gaps " << gaps;
    }
  }
}

TEST(Lowest, Lowest_WithNaN_IsOfNumbersOnly) {
  EXPECT_EQ(lowest(curve_of({3, kNaN, 1, 2, 1})), 2U) << "the first of two";
  EXPECT_EQ(lowest(curve_of({kNaN, 4})), 1U);
  EXPECT_EQ(lowest(curve_of({kNaN})), std::nullopt);
}

TEST(Last, Last_EndsInNaN_IsNone) {
  EXPECT_EQ(last(curve_of({3, 1})), 1.0);
  EXPECT_EQ(last(curve_of({3, kNaN})), std::nullopt);
}

}  // namespace
}  // namespace headgate::compare
