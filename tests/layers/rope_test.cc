// SPDX-License-Identifier: Apache-2.0
#include "layers/rope.hpp"

#include "layers/support.hpp"

namespace headgate::layers {
namespace {

struct Tables {
  std::vector<double> cos, sin;
  Tables(std::int64_t seq_len, std::int64_t rotary_dim, double base)
      : cos(static_cast<std::size_t>(seq_len * rotary_dim / 2)), sin(cos.size()) {
    rope_tables(cos.data(), sin.data(), seq_len, rotary_dim, base);
  }
};

TEST(RopeTables, AnglesFallGeometrically) {
  const Tables t(5, 4, 100.0);
  for (std::size_t position = 0; position < 5; ++position) {
    const auto angle = static_cast<double>(position);
    const Number slow = 0.1 * Number(angle);  // a relative error of the angle is an absolute one of its sine
    EXPECT_DOUBLE_EQ(t.cos[2 * position], std::cos(angle));
    expect_within("sin", t.sin[2 * position + 1],
                  number(std::sin(slow.value), std::abs(std::sin(slow.value)) + slow.magnitude, 0));
  }
}

struct Sample {
  HeadShape shape;
  RopeShape rope;
  double base;
  Strided<double> x;

  explicit Sample(Random& random)
      : shape{random_int(random, 1, 12), random_int(random, 1, 3), random_int(random, 1, 70)},
        rope{random_int(random, 1, 5), 2 * random_int(random, 0, shape.D / 2)},
        base(random_int(random, 0, 1) != 0 ? 50.0 : 10000.0),
        x(random_strided(random, shape)) {}

  /// Pairs (i, i + half) turned by the position's angle; the rest, and what lies between rows, as it is.
  std::vector<Number> formula(Strided<Number> of_x) const {
    const std::int64_t half = rope.rotary_dim / 2;
    for (std::int64_t n = 0; n < shape.N; ++n) {
      for (std::int64_t h = 0; h < shape.H; ++h) {
        Number* row = of_x.view().data + n * x.token_stride + h * x.head_stride;
        for (std::int64_t i = 0; i < half; ++i) {
          const double angle = static_cast<double>(n % rope.seq_len) *
                               std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(rope.rotary_dim));
          const Number a = row[i], b = row[i + half];
          row[i] = a * std::cos(angle) - b * std::sin(angle);
          row[i + half] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
    }
    return of_x.data;
  }
};

template <typename T>
void check(const Sample& s, Random& random) {
  const Tables tables(s.rope.seq_len, s.rope.rotary_dim, s.base);
  const std::vector<T> cos = as<T>(tables.cos), sin = as<T>(tables.sin);
  Tape tape;
  const Strided<Number> of_x = s.x.of(tape.inputs(s.x.data));
  const std::vector<Number> expected = s.formula(of_x);
  const Strided<double> dy = s.x.with(random_values(random, s.x.size()));
  tape.differentiate(expected, dy.data);

  auto y = s.x.with<T>(s.x.data), dx = dy.with<T>(dy.data);
  rope_forward(y.view(), cos.data(), sin.data(), s.shape, s.rope);
  expect_within("y", y.data, expected);
  rope_backward(dx.view(), cos.data(), sin.data(), s.shape, s.rope);
  expect_within("dx", dx.data, tape.gradients(of_x.data));
}

class Rope : public OnTarget {};

TEST_P(Rope, TurnsPairsOfHalvesByPositionAndItsGradientBack) {
  Random random(31);
  for (int round = 0; round < 60; ++round) {
    const Sample s(random);
    check<double>(s, random);
    check<float>(s, random);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Rope, testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
