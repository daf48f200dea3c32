// SPDX-License-Identifier: Apache-2.0
#include "models/layers/magnitude.hpp"

#include "models/layers/support.hpp"

// Compares the tape's gradients with differences, and its magnitudes with the errors that f32 really makes.

namespace headgate::layers {
namespace {

/// Uses every operation of Numbers, over three values.
template <typename N>
std::vector<N> operations(const N& a, const N& b, const N& c) {
  using std::exp, std::log, std::sqrt;
  const N one = static_cast<N>(1.0);
  const N square = a * a + one;
  return {a + b * c,
          a - b / square,
          exp(a - b) * c,
          log(square) * b,
          sqrt(square + b * b) - c,
          a / (one + exp(-(b * c))),
          -a * a * a + log(one + exp(c)) * sqrt(square)};
}

TEST(Tape, Gradients_EachOperation_MatchDifferences) {
  Random random(1);
  for (int round = 0; round < 50; ++round) {
    const std::vector<double> x = random_values(random, 3);
    for (std::size_t output = 0; output < 7; ++output) {
      Tape tape;
      const std::vector<Number> in = tape.inputs(x);
      const Number y = operations(in[0], in[1], in[2])[output];
      tape.differentiate({y}, {1.0});
      const std::vector<Number> gradients = tape.gradients(in);
      for (std::size_t i = 0; i < 3; ++i) {
        const auto moved = [&](double step) {
          std::vector<double> at = x;
          at[i] += step;
          return operations(at[0], at[1], at[2])[output];
        };
        const Slope slope = central_difference(moved, y);
        EXPECT_NEAR(gradients[i].value, slope.value, slope.tolerance + tolerance_of(DType::f64, gradients[i]))
            << "output " << output << ", input " << i;
      }
    }
  }
}

TEST(Tape, Gradient_SeveralUses_IsTheirSum) {
  Tape tape;
  const std::vector<Number> x = tape.inputs({3.0, 5.0});
  const Number y = x[0] * x[0];
  tape.differentiate({y, x[0], x[1]}, {2.0, 10.0, 1.0});
  EXPECT_EQ(tape.gradients({x[0]})[0].value, 2.0 * 6.0 + 10.0);
  EXPECT_EQ(tape.gradients({x[1]})[0].value, 1.0);
  EXPECT_EQ(tape.gradients({Number(7.0)})[0].value, 0.0) << "a constant";
}

/// If terms cancel, the magnitude stays, and so does the tolerance.
TEST(Magnitude, Cancellation_InASum_LowersTheValueOnly) {
  const Number a = 1e6, b = 1e6 + 1.0;
  const Number difference = b * 3.0 - a * 3.0;
  EXPECT_EQ(difference.value, 3.0);
  EXPECT_EQ(difference.magnitude, 6e6 + 3.0);
  EXPECT_EQ((difference * 2.0).magnitude, 2.0 * difference.magnitude);
  EXPECT_EQ(exp(difference).magnitude, exp(difference).value * (1.0 + difference.magnitude));
}

TEST(Magnitude, Tolerance_ErrorsOfF32_AllowsThemAndCatchesTwentyTimesAsMuch) {
  Random random(2);
  for (int round = 0; round < 200; ++round) {
    const std::vector<double> x = random_values(random, 3);
    const std::vector<Number> expected = operations<Number>(x[0], x[1], x[2]);
    const std::vector<float> actual =
        operations(static_cast<float>(x[0]), static_cast<float>(x[1]), static_cast<float>(x[2]));
    expect_within("f32", actual, expected);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const double wrong = expected[i].value + 20.0 * 0x1p-24 * expected[i].magnitude;
      EXPECT_GT(std::abs(wrong - expected[i].value), tolerance_of(DType::f32, expected[i]));
    }
  }
}

TEST(Magnitude, Terms_OfANumber_AreThoseOfItsSums) {
  Number sum;
  for (int i = 0; i < 10; ++i) sum += 2.0 * Number(i);
  EXPECT_EQ(sum.terms, 10);
  Number outer;
  for (int i = 0; i < 5; ++i) outer += sum * sum;
  EXPECT_EQ(outer.terms, 15);
}

}  // namespace
}  // namespace headgate::layers
