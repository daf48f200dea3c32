// SPDX-License-Identifier: Apache-2.0
#include "layers/cross_entropy.hpp"

#include <limits>

#include "layers/support.hpp"

namespace headgate::layers {
namespace {

struct Sample {
  std::int64_t N, V;
  std::vector<double> logits;
  std::vector<std::int32_t> targets;

  explicit Sample(Random& random)
      : N(random_int(random, 1, 8)),
        V(random_int(random, 1, 90)),
        logits(random_values(random, N * V, 3.0)),
        targets(random_tokens(random, N, V)) {
    for (std::int32_t& target : targets) {
      if (random_int(random, 0, 4) == 0) target = kIgnoredTarget;
    }
  }

  double expected(std::vector<double>* losses) const {
    double total = 0.0;
    int counted = 0;
    for (std::int64_t n = 0; n < N; ++n) {
      const double* row = logits.data() + n * V;
      const std::int32_t target = targets[static_cast<std::size_t>(n)];
      double sum = 0.0;
      for (std::int64_t j = 0; j < V; ++j) sum += std::exp(row[j]);
      losses->push_back(target == kIgnoredTarget ? 0.0 : std::log(sum) - row[target]);
      total += losses->back();
      counted += target == kIgnoredTarget ? 0 : 1;
    }
    return counted == 0 ? 0.0 : total / counted;
  }
};

class CrossEntropy : public OnTarget {};

TEST_P(CrossEntropy, MeanOverTheTargetsThatCount) {
  Random random(61);
  for (int round = 0; round < 60; ++round) {
    const Sample s(random);
    std::vector<double> expected, losses(static_cast<std::size_t>(s.N), -1.0);
    const double mean = s.expected(&expected);
    EXPECT_NEAR(cross_entropy<double>(losses.data(), nullptr, s.logits.data(), s.targets.data(), s.N, s.V), mean,
                1e-12);
    for (std::size_t n = 0; n < losses.size(); ++n) EXPECT_NEAR(losses[n], expected[n], 1e-12);
    const auto logits = as<float>(s.logits);
    EXPECT_NEAR(cross_entropy<float>(nullptr, nullptr, logits.data(), s.targets.data(), s.N, s.V), mean, 1e-5);
  }
}

TEST_P(CrossEntropy, GradientMatchesFiniteDifferences) {
  Random random(62);
  for (int round = 0; round < 40; ++round) {
    Sample s(random);
    std::vector<double> gradient(s.logits.size());
    cross_entropy<double>(nullptr, gradient.data(), s.logits.data(), s.targets.data(), s.N, s.V, 2.5);
    expect_gradient("dlogits", s.logits, gradient, [&] {
      return 2.5 * cross_entropy<double>(nullptr, nullptr, s.logits.data(), s.targets.data(), s.N, s.V);
    });
    std::vector<double> in_place = s.logits;
    const double loss =
        cross_entropy<double>(nullptr, in_place.data(), in_place.data(), s.targets.data(), s.N, s.V, 2.5);
    EXPECT_EQ(in_place, gradient);
    EXPECT_EQ(loss, cross_entropy<double>(nullptr, nullptr, s.logits.data(), s.targets.data(), s.N, s.V));
    const auto logits = as<float>(s.logits);
    std::vector<float> single(logits.size());
    cross_entropy<float>(nullptr, single.data(), logits.data(), s.targets.data(), s.N, s.V, 2.5);
    expect_close("dlogits in f32", single, gradient, kSingleTolerance);
  }
}

TEST_P(CrossEntropy, FarLogitsOverflowNowhere) {
  const std::vector<float> logits = {1e30F, 0.0F, -1e30F, 5.0F, 5.0F, -std::numeric_limits<float>::infinity()};
  const std::vector<std::int32_t> targets = {0, 1};
  std::vector<float> losses(2), gradient(6);
  cross_entropy(losses.data(), gradient.data(), logits.data(), targets.data(), 2, 3);
  EXPECT_EQ(losses[0], 0.0F);
  EXPECT_NEAR(losses[1], std::log(2.0), 1e-6);
  EXPECT_EQ(gradient[0], 0.0F);
  EXPECT_NEAR(gradient[3], 0.25, 1e-6);
  EXPECT_NEAR(gradient[4], -0.25, 1e-6);
  EXPECT_EQ(gradient[5], 0.0F);
}

TEST_P(CrossEntropy, NanInALogitIsNanInTheLoss) {
  Random random(63);
  for (const std::size_t at : {0, 5, 20, 36}) {
    auto logits = as<float>(random_values(random, 37));
    logits[at] = std::numeric_limits<float>::quiet_NaN();
    const std::int32_t target = 3;
    EXPECT_TRUE(std::isnan(cross_entropy<float>(nullptr, nullptr, logits.data(), &target, 1, 37))) << at;
  }
}

TEST_P(CrossEntropy, NothingCountsIsZero) {
  const std::vector<double> logits = {1.0, 2.0};
  const std::int32_t target = kIgnoredTarget;
  std::vector<double> gradient(2, 9.0);
  EXPECT_EQ(cross_entropy<double>(nullptr, gradient.data(), logits.data(), &target, 1, 2), 0.0);
  EXPECT_EQ(gradient, (std::vector<double>{0.0, 0.0}));
  EXPECT_EQ(cross_entropy<double>(nullptr, nullptr, nullptr, nullptr, 0, 2), 0.0);
}

INSTANTIATE_TEST_SUITE_P(Targets, CrossEntropy, testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
