// SPDX-License-Identifier: Apache-2.0
#include "verify/oracle/sums.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace headgate::reference {
namespace {

TEST(CompensatedSum, Sum_SmallTermsBesideLarge_KeepsThem) {
  CompensatedSum sum;
  sum.add(0x1p60);
  for (int n = 0; n < 1000; ++n) sum.add(1.0);
  sum.add(-0x1p60);
  EXPECT_EQ(sum.value(), 1000.0);
}

TEST(CompensatedSum, Sum_EqualTerms_IsTheirProduct) {
  const double term = 1.0 / 3.0;
  CompensatedSum sum;
  double plain = 0.0;
  for (int n = 0; n < 3000; ++n) {
    sum.add(term);
    plain += term;
  }
  EXPECT_EQ(sum.value(), 3000.0 * term);
  EXPECT_NE(plain, 3000.0 * term);
}

TEST(CompensatedSum, Sum_InfinitiesOrNaN_KeepsThem) {
  CompensatedSum infinite, nothing;
  for (const double term : {1.0, HUGE_VAL, 2.0}) infinite.add(term);
  EXPECT_EQ(infinite.value(), HUGE_VAL);
  for (const double term : {1.0, HUGE_VAL, -HUGE_VAL}) nothing.add(term);
  EXPECT_TRUE(std::isnan(nothing.value()));
}

constexpr std::int64_t kBlock = 96;
constexpr double kRoundoff = 0x1p-24;

/// The terms summed in f32 as the kernels sum, and what LikeTerms says of them.
struct BlockedSum {
  double sum = 0.0;
  double exact = 0.0;
  double bound = 0.0;
};

BlockedSum blocked_sum(const std::vector<float>& terms) {
  BlockedSum out;
  LikeTerms like;
  CompensatedSum exact;
  float whole = 0.0F;
  float block = 0.0F;
  for (std::size_t n = 0; n < terms.size(); ++n) {
    if (n % kBlock == 0) {
      whole += block;
      block = 0.0F;
    }
    block += terms[n];
    exact.add(static_cast<double>(terms[n]));
    like.add(static_cast<double>(terms[n]), static_cast<std::int64_t>(n) / kBlock, kRoundoff);
  }
  out.sum = static_cast<double>(whole + block);
  out.exact = exact.value();
  out.bound = like.bound();
  return out;
}

TEST(LikeTerms, LikeTerms_EqualTerms_BoundTheirRounding) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(1.0F, 2.0F);
  double worst = 0.0;  // beyond what a walk explains
  for (const std::size_t count : {2U, 50U, 96U, 192U, 257U, 1000U, 5000U}) {
    for (int n = 0; n < 200; ++n) {
      const BlockedSum sum = blocked_sum(std::vector<float>(count, uniform(random)));
      const double error = std::abs(sum.sum - sum.exact) / kRoundoff;
      EXPECT_LE(error, sum.bound + 2.0 * sum.exact) << count;  // the last addition and the whole's own rounding
      const auto terms = static_cast<double>(count);
      worst = std::max(worst, error / sum.exact - std::sqrt(terms));
      // Half a block, and half of the blocks: no more than that.
      const auto block = static_cast<double>(kBlock);
      EXPECT_LE(sum.bound, (std::min(terms, block) / 2 + terms / block / 2 + 1.5) * sum.exact) << count;
    }
  }
  EXPECT_GT(worst, 8.0) << "a walk would explain all errors: nothing was tested";
}

TEST(LikeTerms, LikeTerms_RandomTerms_AreNone) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> terms(257);
  for (int n = 0; n < 20; ++n) {
    for (float& term : terms) term = std::exp(-4.0F * std::abs(normal(random)));
    EXPECT_LE(blocked_sum(terms).bound, blocked_sum(terms).exact);
  }
}

TEST(LikeTerms, LikeTerms_DifferBelowTheSpacing_AreCounted) {
  std::vector<float> terms(96);
  for (std::size_t n = 0; n < terms.size(); ++n) terms[n] = 1.3F + static_cast<float>(n % 3) * 0x1p-23F;
  const BlockedSum sum = blocked_sum(terms);
  EXPECT_GT(sum.bound, 40.0 * sum.exact);
}

}  // namespace
}  // namespace headgate::reference
