// SPDX-License-Identifier: Apache-2.0
#include "models/evaluate/figure.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "headgate/error.hpp"

namespace headgate::metrics {
namespace {

constexpr Figure kFirst{.key = "first"};
constexpr Figure kSecond{.key = "second"};
constexpr Figure kLarge{.key = "large", .may_overflow = true};

TEST(FigureRow, Row_KeySetAgain_KeepsItsOrderAndTheNewestValue) {
  FigureRow row;
  EXPECT_TRUE(row.empty());
  row.set(kSecond, 2.0);
  row.set(kFirst, 1.0);
  row.set(kSecond, 3.0);
  ASSERT_EQ(row.entries().size(), 2U);
  EXPECT_EQ(row.entries()[0].figure->key, "second");
  EXPECT_EQ(row.at(kSecond), 3.0);
  EXPECT_EQ(row.at(kFirst), 1.0);
}

TEST(FigureRow, Row_NoValueOrZero_AreDifferent) {
  FigureRow row;
  row.set(kFirst, std::nullopt);
  row.set(kSecond, 0.0);
  EXPECT_FALSE(row.find(kFirst).has_value());
  EXPECT_FALSE(row.find(kLarge).has_value()) << "not asked for";
  EXPECT_EQ(row.find(kSecond), 0.0);
  EXPECT_EQ(row.or_zero(kFirst), 0.0);
  EXPECT_THROW(row.at(kFirst), Error);
  EXPECT_THROW(row.at(kLarge), Error);
}

TEST(FigureRow, Row_EveryFigureFinite_IsFinite) {
  FigureRow row;
  EXPECT_TRUE(is_finite(row));
  row.set(kFirst, std::nullopt);
  row.set(kLarge, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(is_finite(row)) << "e^loss may overflow though the loss is finite";
  row.set(kLarge, std::nan(""));
  EXPECT_FALSE(is_finite(row)) << "NaN is no overflow";
  row.set(kLarge, 1.0);
  row.set(kSecond, std::nan(""));
  EXPECT_FALSE(is_finite(row));
  row.set(kSecond, -std::numeric_limits<double>::infinity());
  EXPECT_FALSE(is_finite(row));
}

}  // namespace
}  // namespace headgate::metrics
