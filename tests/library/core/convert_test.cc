// SPDX-License-Identifier: Apache-2.0
#include "library/core/convert.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace headgate::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Describes a 16-bit binary format with an implicit leading bit.
struct Format {
  int mantissa_bits;
  int min_exponent;  ///< of the smallest normal number
  int max_exponent;
};

constexpr Format kBFloat16{7, -126, 127};
constexpr Format kFloat16{10, -14, 15};

/// Returns the value of `bits` by the definition of the format.
double decode(std::uint16_t bits, const Format& format) {
  const int exponent_bits = 15 - format.mantissa_bits;
  const int field = (bits & 0x7FFF) >> format.mantissa_bits;
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (field == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  const double unit = std::ldexp(1.0, -format.mantissa_bits);
  if (field == 0) return sign * std::ldexp(mantissa * unit, format.min_exponent);
  return sign * std::ldexp(1.0 + mantissa * unit, field - 1 + format.min_exponent);
}

/// Rounds `x` to the format, to nearest even, by arithmetic in f64, where every step is exact.
double rounded(double x, const Format& format) {
  if (x == 0.0 || !std::isfinite(x)) return x;
  const int exponent = std::max(std::ilogb(x), format.min_exponent);
  const double ulp = std::ldexp(1.0, exponent - format.mantissa_bits);
  const double result = std::nearbyint(x / ulp) * ulp;  // the default rounding mode is ties to even
  const double largest = std::ldexp(2.0 - std::ldexp(1.0, -format.mantissa_bits), format.max_exponent);
  return std::abs(result) > largest ? std::copysign(std::numeric_limits<double>::infinity(), x) : result;
}

/// Compares numbers. NaNs are equal; zeros must agree in sign.
::testing::AssertionResult same(double got, double want) {
  if (std::isnan(want) ? std::isnan(got) : got == want && std::signbit(got) == std::signbit(want)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << got << " instead of " << want;
}

::testing::AssertionResult both_round_right(float x) {
  const auto bf16 = same(to_f32(to_bf16(x)), rounded(x, kBFloat16));
  if (!bf16) return ::testing::AssertionFailure() << "bf16 of " << x << ": " << bf16.message();
  const auto f16 = same(to_f32(to_f16(x)), rounded(x, kFloat16));
  if (!f16) return ::testing::AssertionFailure() << "f16 of " << x << ": " << f16.message();
  return ::testing::AssertionSuccess();
}

TEST(Convert, Bf16_EveryValue_RoundTrips) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const BFloat16 stored{static_cast<std::uint16_t>(bits)};
    const float value = to_f32(stored);
    ASSERT_TRUE(same(value, decode(stored.bits, kBFloat16))) << "bits " << bits;
    if (std::isnan(value)) {
      ASSERT_EQ(to_bf16(value).bits, stored.bits | 0x40U) << "bits " << bits;  // quiet, payload and sign kept
    } else {
      ASSERT_EQ(to_bf16(value).bits, stored.bits);
    }
  }
}

TEST(Convert, F16_EveryValue_RoundTrips) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const Float16 stored{static_cast<std::uint16_t>(bits)};
    const float value = to_f32(stored);
    ASSERT_TRUE(same(value, decode(stored.bits, kFloat16))) << "bits " << bits;
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(to_f32(to_f16(value)))) << "bits " << bits;
      ASSERT_EQ(to_f16(value).bits & 0x8000U, stored.bits & 0x8000U) << "bits " << bits;
    } else {
      ASSERT_EQ(to_f16(value).bits, stored.bits);
    }
  }
}

// Tests the midpoint between two neighbours of a 16-bit format, and the floats on either side of it.
TEST(Convert, Conversion_TiesBetweenNeighbours_RoundToEven) {
  for (std::uint32_t bits = 0; bits < 0x7C00U; ++bits) {
    const double low = decode(static_cast<std::uint16_t>(bits), kFloat16);
    // After the largest finite f16 the next step would be 2^16.
    const double high = bits + 1 < 0x7C00U ? decode(static_cast<std::uint16_t>(bits + 1), kFloat16) : 65536.0;
    const auto middle = static_cast<float>((low + high) / 2);
    for (const float x : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, kInf)}) {
      ASSERT_TRUE(both_round_right(x));
      ASSERT_TRUE(both_round_right(-x));
    }
    ASSERT_EQ(to_f16(middle).bits & 1U, 0U) << middle;
  }
  for (std::uint32_t bits = 0; bits < 0x7F80U; ++bits) {
    const auto middle = std::bit_cast<float>((bits << 16) | 0x8000U);
    for (const float x : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, kInf)}) {
      ASSERT_TRUE(both_round_right(x));
      ASSERT_TRUE(both_round_right(-x));
    }
    ASSERT_EQ(to_bf16(middle).bits & 1U, 0U) << middle;
  }
}

TEST(Convert, Conversion_RandomFloats_RoundsAsInDoubleArithmetic) {
  std::mt19937 random(20261121);
  std::uniform_int_distribution<std::uint32_t> any;
  std::uniform_int_distribution<std::uint32_t> half_exponent(127 - 26, 127 + 17);  // f16's range and beyond
  for (int run = 0; run < 1'000'000; ++run) {
    const std::uint32_t bits = any(random);
    ASSERT_TRUE(both_round_right(std::bit_cast<float>(bits)));
    const std::uint32_t near = (bits & 0x807FFFFFU) | (half_exponent(random) << 23);
    ASSERT_TRUE(both_round_right(std::bit_cast<float>(near)));
  }
}

TEST(Convert, Conversion_LimitsOfTheFormats_RoundAsSpecified) {
  EXPECT_EQ(to_f16(65504.0F).bits, 0x7BFFU);
  EXPECT_EQ(to_f16(65519.996F).bits, 0x7BFFU);
  EXPECT_EQ(to_f16(65520.0F).bits, 0x7C00U);  // the tie goes to even, infinity
  EXPECT_EQ(to_f16(-1e30F).bits, 0xFC00U);
  EXPECT_EQ(to_f16(kInf).bits, 0x7C00U);
  EXPECT_EQ(to_f16(0x1p-24F).bits, 0x0001U);
  EXPECT_EQ(to_f16(0x1p-25F).bits, 0x0000U);  // the tie goes to even, zero
  EXPECT_EQ(to_f16(0x1.000002p-25F).bits, 0x0001U);
  EXPECT_EQ(to_f16(-0x1p-149F).bits, 0x8000U);
  EXPECT_EQ(to_f16(0x1.FFCp-15F).bits, 0x0400U);  // half a step above the largest subnormal
  EXPECT_EQ(to_f16(-0.0F).bits, 0x8000U);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7F80U);
  EXPECT_EQ(to_bf16(-kInf).bits, 0xFF80U);
  EXPECT_EQ(to_bf16(-0.0F).bits, 0x8000U);
  EXPECT_EQ(to_bf16(0x1p-149F).bits, 0x0000U);
  EXPECT_EQ(to_bf16(0x1p-133F).bits, 0x0001U);
  // A NaN whose payload lies below the kept bits must not become an infinity.
  EXPECT_TRUE(std::isnan(to_f32(to_bf16(std::bit_cast<float>(0x7F800001U)))));
  EXPECT_TRUE(std::isnan(to_f32(to_f16(std::bit_cast<float>(0xFF800001U)))));
  EXPECT_TRUE(std::isnan(to_f32(to_bf16(std::bit_cast<float>(0x7FFFFFFFU)))));
}

}  // namespace
}  // namespace headgate::testing
