// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "models/layers/support.hpp"

namespace headgate::models {

/// Checks the errors of all tokens' losses together: three standard deviations of what roundings of every result by a
/// relative 2⁻⁹ cause, times `slack`, but more than what roundings to f32 cause.
inline void expect_bf16(const std::vector<float>& losses, const std::vector<layers::Number>& expected,
                        double slack = 1.0) {
  constexpr double kRounding = 0x1p-9, kDeviations = 3.0;
  ASSERT_EQ(losses.size(), expected.size());
  double error = 0.0, deviation = 0.0, roundings_of_f32 = 0.0;
  for (std::size_t n = 0; n < losses.size(); ++n) {
    error = std::hypot(error, static_cast<double>(losses[n]) - expected[n].value);
    deviation = std::hypot(deviation, kRounding * expected[n].magnitude);
    roundings_of_f32 = std::hypot(roundings_of_f32, layers::tolerance_of(DType::f32, expected[n]));
  }
  EXPECT_LE(error, slack * kDeviations * deviation);
  EXPECT_GT(error, roundings_of_f32) << "nothing was rounded to bf16";
}

}  // namespace headgate::models
