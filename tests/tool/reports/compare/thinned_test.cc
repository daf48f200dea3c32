// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/compare/thinned.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
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
