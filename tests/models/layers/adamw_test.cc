// SPDX-License-Identifier: Apache-2.0
#include "models/layers/adamw.hpp"

#include <algorithm>
#include <limits>

#include "models/layers/support.hpp"

namespace headgate::layers {
namespace {

class AdamW : public OnTarget {};

template <typename T>
double norm_of(const std::vector<T>& x, const ExecutionContext& context) {
  return squared_norm(view_of(x, x.size()), context);
}

struct State {
  std::vector<Number> w, m, v;

  /// Computes one element after the other, as textbooks do.
  void step(const std::vector<double>& g, const AdamWOptions& o) {
    const auto t = static_cast<double>(o.step);
    for (std::size_t i = 0; i < w.size(); ++i) {
      const Number gradient = g[i] * Number(o.gradient_scale);
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * gradient;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * gradient * gradient;
      const Number mean = m[i] / (1 - std::pow(o.beta1, t));
      const Number square = v[i] / (1 - std::pow(o.beta2, t));
      w[i] -= o.lr * (mean / (sqrt(square) + o.eps) + o.weight_decay * w[i]);
    }
  }
};

/// Starts each step where the last one ended. Roundings of the decay are alike at every step, so those of many steps
/// add up in full, which the rule for walks does not allow.
template <typename T>
void check_steps(const std::vector<double>& start, Random& random, const ExecutionContext& context) {
  const auto n = static_cast<std::int64_t>(start.size());
  std::vector<T> w = as<T>(start), m(start.size()), v(start.size());
  AdamWOptions options;
  options.lr = 0.01;
  options.weight_decay = 0.1;
  options.gradient_scale = 0.5;
  for (options.step = 1; options.step <= 20; ++options.step) {
    const auto g = random_values(random, n);
    State expected{{w.begin(), w.end()}, {m.begin(), m.end()}, {v.begin(), v.end()}};
    expected.step(g, options);
    adamw_step(view_of(w, n), view_of(m, n), view_of(v, n), view_of(as<T>(g), n), options, context);
    expect_within("w", w, expected.w);
    expect_within("m", m, expected.m);
    expect_within("v", v, expected.v);
  }
}

TEST_P(AdamW, Parameters_ManySteps_FollowTheTextbook) {
  Random random(71);
  for (const std::int64_t n : {1, 15, 64, 77, 9001}) {
    const auto start = random_values(random, n);
    check_steps<double>(start, random, on());
    check_steps<float>(start, random, on());
  }
}

TEST_P(AdamW, Weights_NoGradient_Decay) {
  std::vector<double> w = {1.0, -2.0, 4.0}, m(3), v(3);
  const std::vector<double> g(3);
  AdamWOptions options;
  options.lr = 0.5;
  options.weight_decay = 0.5;
  adamw_step(view_of(w, 3), view_of(m, 3), view_of(v, 3), view_of(g, 3), options, on());
  EXPECT_EQ(w, (std::vector<double>{0.75, -1.5, 3.0}));
}

TEST_P(AdamW, Step_First_HasTheLengthOfTheLearningRate) {
  std::vector<float> w(40, 0.0F), m(40, 0.0F), v(40, 0.0F), g(40);
  State expected{std::vector<Number>(40), std::vector<Number>(40), std::vector<Number>(40)};
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = std::ldexp(i % 2 == 0 ? 1.0F : -1.0F, static_cast<int>(i / 2));
  AdamWOptions options;
  options.lr = 0.25;
  options.eps = 0.0;
  expected.step({g.begin(), g.end()}, options);
  adamw_step(view_of(w, 40), view_of(m, 40), view_of(v, 40), view_of(g, 40), options, on());
  for (std::size_t i = 0; i < w.size(); ++i) EXPECT_DOUBLE_EQ(expected.w[i].value, i % 2 == 0 ? -0.25 : 0.25);
  expect_within("w", w, expected.w);
}

TEST_P(AdamW, SquaredNorm_F64IsExact_IsExact) {
  for (const std::int64_t n : {0, 1, 7, 32, 33, 32768, 32769, 100000}) {
    std::vector<float> x(static_cast<std::size_t>(n));
    double expected = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(i % 1000) - 300.0F;
      expected += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    EXPECT_EQ(norm_of(x, on()), expected);
    EXPECT_EQ(norm_of(std::vector<double>(x.begin(), x.end()), on()), expected);
  }
}

TEST_P(AdamW, SquaredNorm_AnyNumberOfThreads_IsBitwiseIdentical) {
  Random random(72);
  const auto x = as<float>(random_values(random, 300000));
  std::vector<double> results;
  for (const int threads : {1, 2, 3, 7}) {
    results.push_back(norm_of(x, on(threads)));
  }
  EXPECT_EQ(std::count(results.begin(), results.end(), results[0]), 4);
  long double expected = 0.0L;
  for (const float value : x) expected += static_cast<long double>(value) * static_cast<long double>(value);
  const auto sum = static_cast<double>(expected);
  expect_within("sum of squares", results[0], number(sum, sum, 300000));
}

TEST_P(AdamW, SquaredNorm_NotFinite_IsNotFinite) {
  std::vector<float> x(50000, 1.0F);
  x[40000] = 1e30F;  // its square overflows f32, not f64
  expect_within("sum of squares", norm_of(x, on()), Number(x[40000]) * Number(x[40000]) + 49999.0);
  x[40000] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(norm_of(x, on())));
  x[49999] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(norm_of(x, on())));
}

INSTANTIATE_TEST_SUITE_P(Targets, AdamW, ::testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
