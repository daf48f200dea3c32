// SPDX-License-Identifier: Apache-2.0
#include "library/core/rows.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "headgate/error.hpp"

namespace headgate {
namespace {

struct Sample {
  std::int64_t count = 1;
  double share = 0.5;
  double other_share = 0.25;
  std::vector<std::string> names;
};

template <typename V>
struct SampleRow : FieldText {
  using Value = V;
  V Sample::*member;

  constexpr SampleRow(V Sample::*member_in, const FieldText& text) : FieldText(with_key(text)), member(member_in) {}
  template <class Object>
  constexpr auto& of(Object& object) const {
    return (object.*member);
  }
};

constexpr std::tuple kSample{SampleRow(&Sample::count, {.name = "count", .key = "how_many"}),
                             SampleRow(&Sample::share, {.name = "share", .option = "--share"}),
                             SampleRow(&Sample::names, {.name = "names"})};

TEST(Rows, Row_ByItsField_IsFound) {
  EXPECT_EQ((row_of<kSample, &Sample::count>().key), "how_many");
  EXPECT_EQ((row_of<kSample, &Sample::share>().key), "share") << "a key that is not given is the name";
  EXPECT_EQ(index_of_row(kSample, &Sample::names), 2U);
  EXPECT_EQ(index_of_row(kSample, &Sample::other_share), 3U) << "a field of the same type without a row";
}

TEST(Given, Given_SomeFields_OverwritesThoseOfTheObject) {
  Given<kSample> given;
  EXPECT_FALSE(given.any());
  Sample sample;
  given.put_into(sample);
  EXPECT_EQ(sample.count, 1);
  given.of<&Sample::share>() = 0.75;
  EXPECT_TRUE(given.any());
  given.put_into(sample);
  EXPECT_EQ(sample.count, 1);
  EXPECT_EQ(sample.share, 0.75);
  EXPECT_EQ(sample.other_share, 0.25);
  given.of<&Sample::share>().reset();
  EXPECT_FALSE(given.any());
  given.of<&Sample::names>() = {"a", "b"};
  EXPECT_TRUE(given.any());
  given.put_into(sample);
  EXPECT_EQ(sample.names, (std::vector<std::string>{"a", "b"}));
}

TEST(Range, Range_InclusiveOrExclusiveBounds_ContainsThem) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr Range<std::int64_t> kCount{.least = 1, .most = 512};
  EXPECT_TRUE(kCount.has(1) && kCount.has(512));
  EXPECT_FALSE(kCount.has(0) || kCount.has(513));
  constexpr Range<double> kBelowOne{.least = 0.0, .most = 1.0, .at_most = Bound::excluded};
  EXPECT_TRUE(kBelowOne.has(0.0) && kBelowOne.has(0.999));
  EXPECT_FALSE(kBelowOne.has(1.0) || kBelowOne.has(-1e-300) || kBelowOne.has(std::nan("")));
  constexpr Range<double> kAboveZero{.least = 0.0, .at_least = Bound::excluded};
  EXPECT_TRUE(kAboveZero.has(5e-324) && kAboveZero.has(1e308));
  EXPECT_FALSE(kAboveZero.has(0.0) || kAboveZero.has(kInfinity) || kAboveZero.has(std::nan("")));
  constexpr Range<double> kFinite{};
  EXPECT_TRUE(kFinite.has(-1e308));
  EXPECT_FALSE(kFinite.has(kInfinity) || kFinite.has(-kInfinity) || kFinite.has(std::nan("")));
  EXPECT_EQ(kCount.text(), "from 1 to 512");
  EXPECT_EQ(kBelowOne.text(), "from 0 to below 1");
  EXPECT_EQ(kAboveZero.text(), "a finite number above 0");
  EXPECT_EQ(Range<double>{.least = 0.0}.text(), "a finite number from 0 on");
  EXPECT_EQ(kFinite.text(), "a finite number");
  try {
    require_in(kCount, "count", std::int64_t{0});
    FAIL() << "0 is not in the range";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "count is 0 but must be from 1 to 512");
  }
}

}  // namespace
}  // namespace headgate
