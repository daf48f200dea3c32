// SPDX-License-Identifier: Apache-2.0
#include "layers/adamw.hpp"

#include <limits>

#include "layers/support.hpp"

namespace headgate::layers {
namespace {

class AdamW : public OnTarget {};

struct State {
  std::vector<double> w, m, v;

  /// The textbook, one element after the other.
  void step(const std::vector<double>& g, const AdamWOptions& o) {
    const auto t = static_cast<double>(o.step);
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double gradient = g[i] * o.gradient_scale;
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * gradient;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * gradient * gradient;
      const double mean = m[i] / (1 - std::pow(o.beta1, t));
      const double square = v[i] / (1 - std::pow(o.beta2, t));
      w[i] -= o.lr * (mean / (std::sqrt(square) + o.eps) + o.weight_decay * w[i]);
    }
  }
};

TEST_P(AdamW, FollowsTheTextbookForManySteps) {
  Random random(71);
  for (const std::int64_t n : {1, 15, 64, 77, 20001}) {
    State expected{random_values(random, n), std::vector<double>(static_cast<std::size_t>(n)),
                   std::vector<double>(static_cast<std::size_t>(n))};
    State actual = expected;
    auto w = as<float>(actual.w), m = as<float>(actual.m), v = as<float>(actual.v);
    AdamWOptions options;
    options.lr = 0.01;
    options.weight_decay = 0.1;
    options.gradient_scale = 0.5;
    for (options.step = 1; options.step <= 20; ++options.step) {
      const auto g = random_values(random, n);
      expected.step(g, options);
      adamw_step(actual.w.data(), actual.m.data(), actual.v.data(), g.data(), n, options);
      adamw_step(w.data(), m.data(), v.data(), as<float>(g).data(), n, options);
    }
    expect_close("w", actual.w, expected.w, 1e-13);
    expect_close("m", actual.m, expected.m, 1e-13);
    expect_close("v", actual.v, expected.v, 1e-13);
    expect_close("w in f32", w, expected.w, kSingleTolerance);
    expect_close("m in f32", m, expected.m, kSingleTolerance);
    expect_close("v in f32", v, expected.v, kSingleTolerance);
  }
}

TEST_P(AdamW, WeightsDecayWithoutAGradient) {
  std::vector<double> w = {1.0, -2.0, 4.0}, m(3), v(3);
  const std::vector<double> g(3);
  AdamWOptions options;
  options.lr = 0.5;
  options.weight_decay = 0.5;
  adamw_step(w.data(), m.data(), v.data(), g.data(), 3, options);
  EXPECT_EQ(w, (std::vector<double>{0.75, -1.5, 3.0}));
}

TEST_P(AdamW, FirstStepHasTheLengthOfTheLearningRate) {
  std::vector<float> w(40, 0.0F), m(40, 0.0F), v(40, 0.0F), g(40);
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = std::ldexp(i % 2 == 0 ? 1.0F : -1.0F, static_cast<int>(i / 2));
  AdamWOptions options;
  options.lr = 0.25;
  adamw_step(w.data(), m.data(), v.data(), g.data(), 40, options);
  for (std::size_t i = 0; i < w.size(); ++i) EXPECT_NEAR(w[i], i % 2 == 0 ? -0.25 : 0.25, 1e-6);
}

TEST_P(AdamW, SquaredNormIsExactWhereF64Is) {
  for (const std::int64_t n : {0, 1, 7, 32, 33, 32768, 32769, 100000}) {
    std::vector<float> x(static_cast<std::size_t>(n));
    double expected = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(i % 1000) - 300.0F;
      expected += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    EXPECT_EQ(squared_norm(x.data(), n), expected);
    const std::vector<double> wide(x.begin(), x.end());
    EXPECT_EQ(squared_norm(wide.data(), n), expected);
  }
}

TEST_P(AdamW, SquaredNormHasTheSameBitsAtAnyNumberOfThreads) {
  Random random(72);
  const auto x = as<float>(random_values(random, 300000));
  std::vector<double> results;
  for (const int threads : {1, 2, 3, 7}) {
    omp_set_num_threads(threads);
    results.push_back(squared_norm(x.data(), 300000));
  }
  EXPECT_EQ(std::count(results.begin(), results.end(), results[0]), 4);
  EXPECT_NEAR(results[0], 300000.0, 3000.0);
}

TEST_P(AdamW, SquaredNormShowsWhatIsNotFinite) {
  std::vector<float> x(50000, 1.0F);
  x[40000] = 1e30F;  // its square overflows f32, not f64
  EXPECT_NEAR(squared_norm(x.data(), 50000), 1e60, 1e54);
  x[40000] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(squared_norm(x.data(), 50000)));
  x[49999] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(squared_norm(x.data(), 50000)));
}

INSTANTIATE_TEST_SUITE_P(Targets, AdamW, testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
