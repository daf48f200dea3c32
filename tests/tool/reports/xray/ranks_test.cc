// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/ranks.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "models/decoder/tiny.hpp"

namespace headgate::xray {
namespace {

constexpr double kClose = 1e-7;  // of the largest: what singular_values promises

std::vector<float> drawn(std::int64_t count, std::uint64_t seed) {
  models::Draws draws(seed);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& x : out) x = static_cast<float>(draws.symmetric());
  return out;
}

/// Σ of the squares of the entries of a(m,n) b(k,n)ᵀ, from the definition.
double squared_norm(const View<const float, 2>& a, const View<const float, 2>& b) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < a.shape[0]; ++i) {
    for (std::int64_t j = 0; j < b.shape[0]; ++j) {
      double entry = 0.0;
      for (std::int64_t x = 0; x < a.shape[1]; ++x)
        entry += static_cast<double>(a(i, x)) * static_cast<double>(b(j, x));
      sum += entry * entry;
    }
  }
  return sum;
}

TEST(Gram, Gram_OfAMatrix_IsItsProductWithItself) {
  const std::vector<float> values = drawn(3 * 5, 1);
  const View<const float, 2> x = view_of(values, 3, 5);
  const Gram rows = gram_of_rows(x), columns = gram_of_columns(x);
  ASSERT_EQ(rows.n, 3);
  ASSERT_EQ(columns.n, 5);
  double of_rows = 0.0, of_columns = 0.0;
  for (std::int64_t n = 0; n < 5; ++n) of_rows += static_cast<double>(x(2, n)) * static_cast<double>(x(0, n));
  for (std::int64_t n = 0; n < 3; ++n) of_columns += static_cast<double>(x(n, 4)) * static_cast<double>(x(n, 1));
  EXPECT_NEAR(rows.values[2 * 3 + 0], of_rows, 1e-15);
  EXPECT_NEAR(columns.values[4 * 5 + 1], of_columns, 1e-15);
}

TEST(SingularValues, SingularValues_DiagonalMatrices_AreTheirProducts) {
  // aᵀa = diag(4, 9, 0), bᵀb = diag(25, 1, 16): the entries of a bᵀ are 2·5, 3·1 and 0.
  const std::vector<double> values =
      singular_values({3, {4, 0, 0, 0, 9, 0, 0, 0, 0}}, {3, {25, 0, 0, 0, 1, 0, 0, 0, 16}});
  ASSERT_EQ(values.size(), 3U);
  EXPECT_NEAR(values[0], 10.0, 10.0 * kClose);
  EXPECT_NEAR(values[1], 3.0, 10.0 * kClose);
  EXPECT_NEAR(values[2], 0.0, 10.0 * kClose);
}

TEST(SingularValues, SingularValues_AnyMatrices_HaveTheNormOfTheProduct) {
  for (const std::int64_t features : {1, 2, 7, 16}) {
    const std::vector<float> a_values = drawn(11 * features, 3), b_values = drawn(13 * features, 5);
    const View<const float, 2> a = view_of(a_values, 11, features), b = view_of(b_values, 13, features);
    const std::vector<double> values = singular_values(gram_of_columns(a), gram_of_columns(b));
    double sum = 0.0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      sum += values[i] * values[i];
      EXPECT_LE(values[i], i > 0 ? values[i - 1] : values[i]);
    }
    const double wanted = squared_norm(a, b);
    EXPECT_NEAR(sum, wanted, 1e-12 * wanted) << features;
  }
}

TEST(SingularValues, SingularValues_NotFinite_AreNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> values = singular_values({2, {1, nan, nan, 1}}, {2, {1, 0, 0, 1}});
  EXPECT_TRUE(std::isnan(values[0]));
  EXPECT_TRUE(std::isnan(effective_rank(values)));
}

TEST(EffectiveRank, EffectiveRank_EqualSingularValues_CountsThem) {
  EXPECT_EQ(effective_rank({}), 0.0);
  EXPECT_EQ(effective_rank({0.0, 0.0}), 0.0);
  EXPECT_NEAR(effective_rank({3.0, 0.0, 0.0}), 1.0, 1e-15);
  EXPECT_NEAR(effective_rank({2.0, 2.0, 2.0, 2.0}), 4.0, 1e-14);
  EXPECT_NEAR(effective_rank({3.0, 1.0}), std::exp(-0.75 * std::log(0.75) - 0.25 * std::log(0.25)), 1e-14);
}

}  // namespace
}  // namespace headgate::xray
