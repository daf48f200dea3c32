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

class Rope : public OnTarget {};

TEST(RopeTables, AnglesFallGeometrically) {
  const Tables t(5, 4, 100.0);
  for (int position = 0; position < 5; ++position) {
    EXPECT_DOUBLE_EQ(t.cos[static_cast<std::size_t>(2 * position)], std::cos(position));
    EXPECT_NEAR(t.sin[static_cast<std::size_t>(2 * position + 1)], std::sin(0.1 * position), 1e-15);
  }
}

TEST_P(Rope, TurnsPairsOfHalvesByPositionAndLeavesTheRest) {
  Random random(31);
  for (int round = 0; round < 60; ++round) {
    const HeadShape shape{random_int(random, 1, 12), random_int(random, 1, 3), random_int(random, 1, 70)};
    const RopeShape rope{random_int(random, 1, 5), 2 * random_int(random, 0, shape.D / 2)};
    const Tables tables(rope.seq_len, rope.rotary_dim, 50.0);
    const Strided<double> x = random_strided(random, shape);
    Strided<double> y = x, expected = x;
    const std::int64_t half = rope.rotary_dim / 2;
    for (std::int64_t n = 0; n < shape.N; ++n) {
      for (std::int64_t h = 0; h < shape.H; ++h) {
        double* row = expected.view().data + n * x.token_stride + h * x.head_stride;
        for (std::int64_t i = 0; i < half; ++i) {
          const double angle = static_cast<double>(n % rope.seq_len) *
                               std::pow(50.0, -2.0 * static_cast<double>(i) / static_cast<double>(rope.rotary_dim));
          const double a = row[i], b = row[i + half];
          row[i] = a * std::cos(angle) - b * std::sin(angle);
          row[i + half] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
    }
    rope_forward(y.view(), tables.cos.data(), tables.sin.data(), shape, rope);
    expect_close("x", y.data, expected.data, 1e-14);
    auto single = x.with<float>(x.data);
    rope_forward(single.view(), as<float>(tables.cos).data(), as<float>(tables.sin).data(), shape, rope);
    expect_close("x in f32", single.data, expected.data, kSingleTolerance);
  }
}

TEST_P(Rope, GradientTurnsBack) {
  Random random(32);
  for (int round = 0; round < 20; ++round) {
    const HeadShape shape{random_int(random, 1, 6), random_int(random, 1, 3), random_int(random, 2, 40)};
    const RopeShape rope{random_int(random, 1, 5), 2 * random_int(random, 1, shape.D / 2)};
    const Tables tables(rope.seq_len, rope.rotary_dim, 10000.0);
    Strided<double> x = random_strided(random, shape);
    const Strided<double> dy = x.with(random_values(random, x.size()));
    const auto loss = [&] {
      Strided<double> y = x;
      rope_forward(y.view(), tables.cos.data(), tables.sin.data(), shape, rope);
      return dot(dy.data, y.data);
    };
    Strided<double> dx = dy;  // gaps pass through the forward pass unchanged: their gradient is dy
    rope_backward(dx.view(), tables.cos.data(), tables.sin.data(), shape, rope);
    expect_gradient("dx", x.data, dx.data, loss);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Rope, testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
