// SPDX-License-Identifier: Apache-2.0
#include "models/layers/rope.hpp"

#include <algorithm>
#include <numeric>

#include "models/layers/support.hpp"

namespace headgate::layers {
namespace {

/// Makes the tables of tokens at some positions.
template <typename T>
struct Tables {
  std::int64_t half;
  std::vector<T> cos_values, sin_values;

  Tables(const std::vector<std::int64_t>& positions, std::int64_t rotary_dim, double base)
      : half(rotary_dim / 2), cos_values(positions.size() * static_cast<std::size_t>(half)), sin_values(cos_values) {
    const auto count = static_cast<std::int64_t>(positions.size());
    rope_tables(view_of(cos_values, count, half), view_of(sin_values, count, half), view_of(positions, count),
                rope_frequencies(rotary_dim, base));
  }
  View<const T, 2> cos() const { return {cos_values.data(), {rows(), half}}; }
  View<const T, 2> sin() const { return {sin_values.data(), {rows(), half}}; }
  std::int64_t rows() const { return half == 0 ? 0 : static_cast<std::int64_t>(cos_values.size()) / half; }
};

TEST(RopeTables, Angles_OfEachPair_FallGeometrically) {
  const std::vector<std::int64_t> positions{0, 1, 2, 3, 1000};
  const Tables<double> t(positions, 4, 100.0);
  for (std::size_t row = 0; row < 5; ++row) {
    const auto angle = static_cast<double>(positions[row]);
    const Number slow = 0.1 * Number(angle);  // a relative error of the angle is an absolute error of its sine
    EXPECT_DOUBLE_EQ(t.cos_values[2 * row], std::cos(angle));
    expect_within("sin", t.sin_values[2 * row + 1],
                  number(std::sin(slow.value), std::abs(std::sin(slow.value)) + slow.magnitude, 0));
  }
}

TEST(RopeFrequencies, Frequencies_LlamaScaling_AreThoseOfLlama) {
  // Values of transformers' _compute_llama3_parameters with base 500000, head_dim 128, factor 8, 1 and 4 of 8192
  // tokens.
  const RopeScaling llama3{RopeScalingKind::llama3, 8.0, 1.0, 4.0, 8192};
  const std::vector<double> scaled = rope_frequencies(128, 5e5, llama3), plain = rope_frequencies(128, 5e5);
  ASSERT_EQ(scaled.size(), 64U);
  EXPECT_DOUBLE_EQ(scaled[0], 1.0);
  EXPECT_DOUBLE_EQ(scaled[20], plain[20]);
  EXPECT_NEAR(scaled[30], 0.0013718936825171113, 1e-9);
  EXPECT_NEAR(scaled[33], 0.0003126936499029398, 1e-9);
  EXPECT_DOUBLE_EQ(scaled[40], plain[40] / 8.0);
  EXPECT_DOUBLE_EQ(scaled[63], plain[63] / 8.0);
  EXPECT_DOUBLE_EQ(rope_frequencies(4, 100.0, {RopeScalingKind::linear, 4.0})[1], 0.025);
}

TEST(RopeFrequencies, Frequencies_Yarn_AreThoseOfTransformers) {
  // Values of transformers' _compute_yarn_parameters with base 150000, head_dim 64, factor 32, betas of 32 and 1 and
  // 4096 tokens, as gpt-oss has them.
  RopeScaling yarn{RopeScalingKind::yarn, 32.0, 1.0, 32.0, 4096};
  const std::vector<double> rounded = rope_frequencies(64, 150000.0, yarn);
  yarn.truncate = false;
  const std::vector<double> exact = rope_frequencies(64, 150000.0, yarn), plain = rope_frequencies(64, 150000.0);
  EXPECT_DOUBLE_EQ(exact[8], plain[8]);
  EXPECT_NEAR(exact[9], 0.031705696135759354, 1e-8);
  EXPECT_NEAR(exact[12], 0.006794959306716919, 1e-8);
  EXPECT_NEAR(exact[17], 0.00012931869423482567, 1e-9);
  EXPECT_DOUBLE_EQ(exact[18], plain[18] / 32.0);
  EXPECT_NEAR(rounded[9], 0.031620752066373825, 1e-8);
  EXPECT_NEAR(rounded[12], 0.007015713956207037, 1e-8);
  EXPECT_NEAR(rounded[17], 0.0002279478358104825, 1e-9);
  EXPECT_NEAR(rope_attention_factor(yarn), 1.3465735902799727, 1e-15);
  yarn.attention_factor = 1.5;
  EXPECT_EQ(rope_attention_factor(yarn), 1.5);
  EXPECT_EQ(rope_attention_factor({RopeScalingKind::linear, 32.0}), 1.0);
}

TEST(RopeTables, Factor_MultipliesBothTables) {
  const std::vector<std::int64_t> positions{3};
  std::vector<double> cos(1), sin(1);
  rope_tables(view_of(cos, 1, 1), view_of(sin, 1, 1), view_of(positions, 1), {0.5}, 1.25);
  EXPECT_DOUBLE_EQ(cos[0], 1.25 * std::cos(1.5));
  EXPECT_DOUBLE_EQ(sin[0], 1.25 * std::sin(1.5));
}

struct Sample {
  std::int64_t B;
  std::vector<std::int64_t> positions;  ///< positions of a sequence's tokens
  std::int64_t rotary_dim;
  double base;
  Strided<double> x;  ///< (B·T,H,D)

  explicit Sample(Random& random)
      : B(random_int(random, 1, 3)),
        positions(static_cast<std::size_t>(random_int(random, 1, 5))),
        base(random_int(random, 0, 1) != 0 ? 50.0 : 10000.0),
        x(random_strided(random, {B * T(), random_int(random, 1, 3), random_int(random, 1, 70)})) {
    rotary_dim = 2 * random_int(random, 1, std::max<std::int64_t>(1, x.shape[2] / 2));
    if (rotary_dim > x.shape[2]) rotary_dim = 0;
    for (std::int64_t& position : positions) position = random_int(random, 0, 20);
  }
  std::int64_t T() const { return static_cast<std::int64_t>(positions.size()); }

  /// Rotates pairs (i, i + half) by the position's angle. Keeps the rest, and what lies between rows.
  std::vector<Number> formula(Strided<Number> of_x) const {
    const std::int64_t half = rotary_dim / 2;
    for (std::int64_t n = 0; n < x.shape[0]; ++n) {
      for (std::int64_t h = 0; h < x.shape[1]; ++h) {
        for (std::int64_t i = 0; i < half; ++i) {
          const double angle = static_cast<double>(positions[static_cast<std::size_t>(n % T())]) *
                               std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
          const Number a = of_x.at(n, h, i), b = of_x.at(n, h, i + half);
          of_x.view()(n, h, i) = a * std::cos(angle) - b * std::sin(angle);
          of_x.view()(n, h, i + half) = b * std::cos(angle) + a * std::sin(angle);
        }
      }
    }
    return of_x.data;
  }
};

template <typename T>
void check(const Sample& s, Random& random, const ExecutionContext& context) {
  const Tables<double> exact(s.positions, s.rotary_dim, s.base);
  const std::vector<T> cos = as<T>(exact.cos_values), sin = as<T>(exact.sin_values);
  const auto table = [&](const std::vector<T>& values) { return view_of(values, s.T(), exact.half); };
  Tape tape;
  const Strided<Number> of_x = s.x.of(tape.inputs(s.x.data));
  const std::vector<Number> expected = s.formula(of_x);
  const Strided<double> dy = s.x.with(random_values(random, s.x.size()));
  tape.differentiate(expected, dy.data);

  auto y = s.x.with<T>(s.x.data), dx = dy.with<T>(dy.data);
  rope_forward(y.view().split(0, s.B, s.T()), table(cos), table(sin), context);
  expect_within("y", y.data, expected);
  rope_backward(dx.view().split(0, s.B, s.T()), table(cos), table(sin), context);
  expect_within("dx", dx.data, tape.gradients(of_x.data));
}

class Rope : public OnTarget {};

TEST_P(Rope, Rope_BothPasses_RotatesPairsByPositionAndBack) {
  Random random(31);
  for (int round = 0; round < 60; ++round) {
    const Sample s(random);
    check<double>(s, random, on());
    check<float>(s, random, on());
  }
}

/// A token decoded later is rotated alone, by its own position: scores depend only on differences of positions.
TEST_P(Rope, Scores_SameDifferenceOfPositions_AreTheSame) {
  constexpr std::int64_t kTokens = 6, kDim = 16;
  Random random(33);
  const std::vector<double> q = random_values(random, kTokens * kDim), k = random_values(random, kTokens * kDim);
  const auto scores_from = [&](std::int64_t first) {
    std::vector<std::int64_t> positions(kTokens);
    std::iota(positions.begin(), positions.end(), first);
    const Tables<double> tables(positions, kDim, 100.0);
    std::vector<double> turned_q = q, turned_k = k, scores;
    rope_forward(view_of(turned_q, 1, kTokens, 1, kDim), tables.cos(), tables.sin(), on());
    rope_forward(view_of(turned_k, 1, kTokens, 1, kDim), tables.cos(), tables.sin(), on());
    for (std::int64_t i = 0; i < kTokens; ++i) {
      for (std::int64_t j = 0; j < kTokens; ++j) {
        const double* row = turned_q.data() + i * kDim;
        scores.push_back(std::inner_product(row, row + kDim, turned_k.data() + j * kDim, 0.0));
      }
    }
    return scores;
  };
  const std::vector<double> at_start = scores_from(0), later = scores_from(1000);
  for (std::size_t i = 0; i < at_start.size(); ++i) EXPECT_NEAR(later[i], at_start[i], 1e-11) << i;

  // The last token alone, as in decoding, must be rotated as it was among all.
  const std::vector<std::int64_t> all{7, 8, 9}, last{9};
  const Tables<double> of_all(all, kDim, 100.0), of_last(last, kDim, 100.0);
  std::vector<double> together(q.begin(), q.begin() + 3 * kDim), alone(together.end() - kDim, together.end());
  rope_forward(view_of(together, 1, 3, 1, kDim), of_all.cos(), of_all.sin(), on());
  rope_forward(view_of(alone, 1, 1, 1, kDim), of_last.cos(), of_last.sin(), on());
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.end() - kDim));
}

INSTANTIATE_TEST_SUITE_P(Targets, Rope, ::testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
