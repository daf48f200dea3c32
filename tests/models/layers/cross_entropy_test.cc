// SPDX-License-Identifier: Apache-2.0
#include "models/layers/cross_entropy.hpp"

#include <algorithm>
#include <limits>

#include "models/layers/support.hpp"

namespace headgate::layers {
namespace {

struct LogitsSample {
  std::int64_t N, V;
  std::vector<double> logits;
  std::vector<std::int32_t> targets;

  explicit LogitsSample(Random& random) : LogitsSample(random, random_int(random, 1, 8), random_int(random, 1, 90)) {}
  LogitsSample(Random& random, std::int64_t rows, std::int64_t vocab)
      : N(rows), V(vocab), logits(random_values(random, N * V, 3.0)), targets(random_tokens(random, N, V)) {
    for (std::int32_t& target : targets) {
      if (random_int(random, 0, 4) == 0) target = kIgnoredTarget;
    }
  }

  /// Returns the loss of each row; 0 for ignored targets.
  std::vector<Number> losses(const std::vector<Number>& x) const {
    std::vector<Number> out;
    for (std::int64_t n = 0; n < N; ++n) {
      const Number* row = x.data() + n * V;
      const std::int32_t target = targets[static_cast<std::size_t>(n)];
      const Number largest = std::max_element(row, row + V)->value;
      Number sum;
      for (std::int64_t j = 0; j < V; ++j) sum += exp(row[j] - largest);
      out.push_back(target == kIgnoredTarget ? Number() : log(sum) + (largest - row[target]));
    }
    return out;
  }

  Number mean(const std::vector<Number>& of_rows) const {
    Number sum;
    for (const Number& loss : of_rows) sum += loss;
    const auto counted = N - std::count(targets.begin(), targets.end(), kIgnoredTarget);
    return counted == 0 ? Number() : sum / static_cast<double>(counted);
  }
};

template <typename T>
void check(const LogitsSample& s, const ExecutionContext& context) {
  constexpr double kScale = 2.5;
  Tape tape;
  const std::vector<Number> x = tape.inputs(s.logits), expected = s.losses(x);
  const Number mean = s.mean(expected);
  tape.differentiate({mean}, {kScale});

  const std::vector<T> logits = as<T>(s.logits);
  std::vector<T> losses(expected.size(), T{-1}), gradient(logits.size()), in_place = logits;
  const auto run = [&](View<T, 1> each, View<T, 2> gradients, const std::vector<T>& of) {
    return cross_entropy(each, gradients, view_of(of, s.N, s.V), view_of(s.targets, s.N), kScale, context);
  };
  const double loss = run(view_of(losses, s.N), {}, logits);
  expect_within("mean", static_cast<T>(loss), mean);
  expect_within("losses", losses, expected);
  EXPECT_EQ(run({}, view_of(gradient, s.N, s.V), logits), loss);
  expect_within("dlogits", gradient, tape.gradients(x));
  EXPECT_EQ(run({}, view_of(in_place, s.N, s.V), in_place), loss);
  EXPECT_EQ(in_place, gradient);
}

class CrossEntropy : public OnTarget {};

TEST_P(CrossEntropy, LossAndGradient_IgnoredTargets_AreThoseOfTheFormula) {
  Random random(61);
  for (int round = 0; round < 60; ++round) {
    const LogitsSample s(random);
    check<double>(s, on());
    check<float>(s, on());
  }
}

TEST_P(CrossEntropy, Rows_ManyThreads_AreEachComputedOnce) {
  Random random(64);
  const LogitsSample s(random, 90, 200);
  for (const int threads : {1, 2, 3}) {
    check<double>(s, on(threads));
    check<float>(s, on(threads));
  }
}

TEST_P(CrossEntropy, Loss_LargeLogits_DoesNotOverflow) {
  const std::vector<float> logits = {1e30F, 0.0F, -1e30F, 5.0F, 5.0F, -std::numeric_limits<float>::infinity()};
  const std::vector<std::int32_t> targets = {0, 1};
  std::vector<float> losses(2), gradient(6);
  cross_entropy(view_of(losses, 2), view_of(gradient, 2, 3), view_of(logits, 2, 3), view_of(targets, 2), 1.0, on());
  EXPECT_EQ(losses[0], 0.0F);
  expect_within("two alike", losses[1], log(Number(2.0)));
  EXPECT_EQ(gradient[0], 0.0F);
  expect_within("not the target", gradient[3], Number(0.25));
  expect_within("the target", gradient[4], Number(0.25) - 0.5);
  EXPECT_EQ(gradient[5], 0.0F);
}

TEST_P(CrossEntropy, Loss_NaNInALogit_IsNaN) {
  Random random(63);
  for (const std::size_t at : {0, 5, 20, 36}) {
    auto logits = as<float>(random_values(random, 37));
    logits[at] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<std::int32_t> target{3};
    EXPECT_TRUE(std::isnan(cross_entropy<float>({}, {}, view_of(logits, 1, 37), view_of(target, 1), 1.0, on()))) << at;
  }
}

TEST_P(CrossEntropy, Loss_NoTargets_IsZero) {
  const std::vector<double> logits = {1.0, 2.0};
  const std::vector<std::int32_t> target{kIgnoredTarget};
  std::vector<double> gradient(2, 9.0);
  EXPECT_EQ(cross_entropy({}, view_of(gradient, 1, 2), view_of(logits, 1, 2), view_of(target, 1), 1.0, on()), 0.0);
  EXPECT_EQ(gradient, (std::vector<double>{0.0, 0.0}));
  EXPECT_EQ(cross_entropy<double>({}, {}, {nullptr, {0, 2}}, {}, 1.0, on()), 0.0);
}

INSTANTIATE_TEST_SUITE_P(Targets, CrossEntropy, ::testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
