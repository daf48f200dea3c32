// SPDX-License-Identifier: Apache-2.0
#include "models/layers/elementwise.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/layers/support.hpp"
#include "models/layers/swiglu.hpp"

namespace headgate::layers {
namespace {

/// GELU by its formula with tanh.
Number gelu_tanh(const Number& x) {
  const Number u = Number(std::sqrt(2.0 / 3.14159265358979323846)) * (x + Number(0.044715) * x * x * x);
  return x * sigmoid(Number(2.0) * u);
}

template <typename T>
void check_swiglu(Random& random, Activation activation, const ExecutionContext& context) {
  const std::int64_t N = random_int(random, 1, 6), F = random_int(random, 1, 70);
  // GELU's σ underflows sooner: its argument is cubic.
  const double scale = activation == Activation::silu ? 4.0 : 1.5;
  const std::vector<double> ab = random_values(random, N * 2 * F, scale), dh = random_values(random, N * F);
  Tape tape;
  const std::vector<Number> of_ab = tape.inputs(ab);
  std::vector<Number> expected;
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t f = 0; f < F; ++f) {
      const auto at = static_cast<std::size_t>(n * 2 * F + f);
      const Number act = activation == Activation::silu ? silu(of_ab[at]) : gelu_tanh(of_ab[at]);
      expected.push_back(act * of_ab[at + static_cast<std::size_t>(F)]);
    }
  }
  tape.differentiate(expected, dh);

  std::vector<T> h(dh.size()), dab(ab.size()), again(dh.size());
  const std::vector<T> gate_up = as<T>(ab), incoming = as<T>(dh);
  swiglu_forward(view_of(h, N, F), view_of(gate_up, N, 2 * F), activation, context);
  expect_within("h", h, expected);
  swiglu_backward(view_of(dab, N, 2 * F), {}, view_of(incoming, N, F), view_of(gate_up, N, 2 * F), activation, context);
  expect_within("dab", dab, tape.gradients(of_ab));

  // In place, with h recomputed over dh.
  std::vector<T> in_place = as<T>(ab), over = as<T>(dh);
  swiglu_backward(view_of(in_place, N, 2 * F), view_of(over, N, F), view_of(over, N, F), view_of(in_place, N, 2 * F),
                  activation, context);
  EXPECT_EQ(in_place, dab);
  EXPECT_EQ(over, h);
  swiglu_backward(view_of(dab, N, 2 * F), view_of(again, N, F), view_of(incoming, N, F), view_of(gate_up, N, 2 * F),
                  activation, context);
  EXPECT_EQ(again, h);
}

template <typename T>
void check_clamped_swiglu(Random& random, const ExecutionContext& context) {
  const std::int64_t N = random_int(random, 1, 6), F = random_int(random, 1, 70);
  const std::vector<double> ab = random_values(random, N * 2 * F, 4.0);
  constexpr double kLimit = 2.5;
  std::vector<Number> expected;
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t f = 0; f < F; ++f) {
      const auto at = static_cast<std::size_t>(n * 2 * F + f);
      const Number gate = silu(ab[at]), up = ab[at + static_cast<std::size_t>(F)];
      expected.push_back((gate.value > kLimit ? kLimit : gate) * std::clamp(up.value, -kLimit, kLimit));
    }
  }
  std::vector<T> h(expected.size());
  const std::vector<T> gate_up = as<T>(ab);
  swiglu_clamped_forward(view_of(h, N, F), view_of(gate_up, N, 2 * F), kLimit, context);
  expect_within("h", h, expected);
}

template <typename T>
void check_silu(Random& random, const ExecutionContext& context) {
  const HeadShape shape{random_int(random, 1, 5), random_int(random, 1, 3), random_int(random, 1, 40)};
  const Strided<double> x = random_strided(random, shape, 2.0), dy = x.with(random_values(random, x.size()));
  Tape tape;
  const Strided<Number> of_x = x.of(tape.inputs(x.data));
  Strided<Number> expected = of_x;  // gaps pass through: their gradient is dy
  x.each([&](std::int64_t n, std::int64_t h, std::int64_t d) { expected.view()(n, h, d) = silu(of_x.at(n, h, d)); });
  tape.differentiate(expected.data, dy.data);

  auto y = x.with<T>(x.data), dx = dy.with<T>(dy.data), over_x = y;
  const auto in = y;
  silu_forward(y.view(), y.view(), context);
  expect_within("y", y.data, expected.data);
  silu_backward(dx.view(), dx.view(), in.view(), context);
  expect_within("dx", dx.data, tape.gradients(of_x.data));
  silu_backward(over_x.view(), dy.with<T>(dy.data).view(), over_x.view(), context);
  EXPECT_EQ(over_x.at(0, 0, 0), dx.at(0, 0, 0));
  EXPECT_EQ(over_x.at(shape[0] - 1, shape[1] - 1, shape[2] - 1), dx.at(shape[0] - 1, shape[1] - 1, shape[2] - 1));
}

class Elementwise : public OnTarget {};

TEST_P(Elementwise, Swiglu_BothPasses_MatchesTheFormula) {
  Random random(41);
  for (int round = 0; round < 40; ++round) {
    for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
      check_swiglu<double>(random, activation, on());
      check_swiglu<float>(random, activation, on());
    }
  }
}

TEST_P(Elementwise, ClampedSwiglu_AnySizes_MatchesTheFormula) {
  Random random(42);
  for (int round = 0; round < 40; ++round) {
    check_clamped_swiglu<double>(random, on());
    check_clamped_swiglu<float>(random, on());
  }
}

TEST_P(Elementwise, ClampedSwiglu_NaN_StaysNaN) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> gate_up = {kNaN, 9.0F, 1.0F, kNaN};
  std::vector<float> h(2);
  swiglu_clamped_forward(view_of(h, 1, 2), view_of(gate_up, 1, 4), 2.0, on());
  EXPECT_TRUE(std::isnan(h[0]));
  EXPECT_TRUE(std::isnan(h[1]));
}

TEST_P(Elementwise, Silu_StridedHeads_MatchesTheFormula) {
  Random random(43);
  for (int round = 0; round < 30; ++round) {
    check_silu<double>(random, on());
    check_silu<float>(random, on());
  }
}

TEST_P(Elementwise, Swiglu_LargeArguments_ReachesItsLimits) {
  const std::vector<float> ab = {-200.0F, 200.0F, 1e30F, -1e30F, 3.0F, 3.0F, 1.0F, 1.0F};
  std::vector<float> h(4), dab(8);
  const std::vector<float> dh(4, 1.0F);
  swiglu_forward(view_of(h, 1, 4), view_of(ab, 1, 8), Activation::silu, on());
  swiglu_backward(view_of(dab, 1, 8), {}, view_of(dh, 1, 4), view_of(ab, 1, 8), Activation::silu, on());
  EXPECT_EQ(h, (std::vector<float>{0.0F, 600.0F, 1e30F, 0.0F}));
  EXPECT_EQ(dab, (std::vector<float>{0.0F, 3.0F, 1.0F, 0.0F, 0.0F, 200.0F, 1e30F, 0.0F}));
}

TEST_P(Elementwise, AddAndCopy_AnyRange_WriteItOnly) {
  Random random(44);
  for (const std::int64_t n : {0, 1, 15, 16, 17, 1000, 100003}) {
    for (const int threads : {1, 2, 3}) {
      const auto x = random_values(random, n), start = random_values(random, n + 1);
      std::vector<double> y = start;
      add_to(View<double, 1>(y.data(), {n}), view_of(x, n), on(threads));
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], start[i] + x[i]) << i << " of " << n;
      EXPECT_EQ(y.back(), start.back());
      copy_to(View<double, 1>(y.data(), {n}), view_of(x, n), on(threads));
      EXPECT_TRUE(std::equal(x.begin(), x.end(), y.begin()));
      EXPECT_EQ(y.back(), start.back());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Elementwise, ::testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
