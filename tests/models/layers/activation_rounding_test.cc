// SPDX-License-Identifier: Apache-2.0
#include "models/layers/activation_rounding.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "models/layers/support.hpp"

namespace headgate::layers {
namespace {

using enum ActivationRounding;

/// Returns x(N,3) after rounding.
std::vector<float> rounded(std::vector<float> x, ActivationRounding rounding, bool begins_sequence = true) {
  const auto N = static_cast<std::int64_t>(x.size() / 3);
  round_activations(View<float, 2>(x.data(), {N, 3}), rounding, resolved({}), begins_sequence);
  return x;
}

TEST(ActivationRounding, Numbers_EveryGranularity_AreMultiplesOfTheScale) {
  // Scales are 127 / 127 = 1 for the first token, 0.5 for the second, and 0.25 for the third.
  const std::vector<float> x{127.0F, 2.5F, -3.5F, 63.5F, 1.7F, -0.2F, 31.75F, 0.4F, -0.1F};
  EXPECT_EQ(rounded(x, none), x);
  EXPECT_EQ(rounded(x, token), (std::vector<float>{127.0F, 2.0F, -4.0F, 63.5F, 1.5F, 0.0F, 31.75F, 0.5F, 0.0F}));
  EXPECT_EQ(rounded(x, tensor), (std::vector<float>{127.0F, 2.0F, -4.0F, 64.0F, 2.0F, 0.0F, 32.0F, 0.0F, 0.0F}));
  const std::vector<float> kept{127.0F, 2.5F, -3.5F, 63.5F, 1.5F, 0.0F, 32.0F, 0.5F, 0.0F};
  EXPECT_EQ(rounded(x, tensor_keep_first), kept);
  EXPECT_EQ(rounded(x, tensor_keep_first, /*begins_sequence=*/false), rounded(x, tensor));
}

TEST(ActivationRounding, Zeros_OneTokenOrNone_StayZero) {
  EXPECT_EQ(rounded({0.0F, 0.0F, 0.0F}, token), (std::vector<float>{0.0F, 0.0F, 0.0F}));
  EXPECT_EQ(rounded({1.3F, 0.2F, 0.1F}, tensor_keep_first), (std::vector<float>{1.3F, 0.2F, 0.1F}));
  for (const auto& [rounding, word] : Words<ActivationRounding>::kAll) EXPECT_TRUE(rounded({}, rounding).empty());
}

TEST(ActivationRounding, Infinity_InOneToken_IsNotHidden) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isnan(rounded({infinity, 1.0F, 1.0F}, token).front()));
  EXPECT_TRUE(std::isnan(rounded({std::nanf(""), 1.0F, 1.0F}, tensor).front()));
}

TEST(ActivationRounding, Rows_AnyNumberOfThreads_AreBitwiseIdentical) {
  constexpr std::int64_t N = 300, C = 257;
  std::vector<double> values;
  for (std::int64_t i = 0; i < N * C; ++i) values.push_back(std::sin(static_cast<double>(i)) * static_cast<double>(i));
  for (const auto& [rounding, word] : Words<ActivationRounding>::kAll) {
    std::vector<double> one = values, four = values;
    round_activations(View<double, 2>(one.data(), {N, C}), rounding, resolved({.threads = 1}));
    round_activations(View<double, 2>(four.data(), {N, C}), rounding, resolved({.threads = 4}));
    EXPECT_EQ(one, four) << word;
    EXPECT_NE(one, values) << word;
  }
}

}  // namespace
}  // namespace headgate::layers
