// SPDX-License-Identifier: Apache-2.0
// Tests Precision::native16 of linear attention: chunks with bf16 products if the CPU has them, exact arithmetic
// otherwise. Other tests check its accuracy too: random problems and standard cases of bf16 use it.

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "library/core/element.hpp"
#include "library/linear_attention/linear_property.hpp"
#include "support/products.hpp"

namespace headgate {
namespace {

using verify::BetaInput;
using verify::check_linear_backward_case;
using verify::check_linear_forward_case;
using verify::DecayInput;
using verify::Layout;
using verify::LinearCase;
using verify::LinearCaseSpec;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

LinearCaseSpec native16_spec(std::int64_t T, std::int64_t D, std::int64_t Dv) {
  LinearCaseSpec spec = gated_delta_spec(T, D, Dv);
  spec.dtype = DType::bf16;
  spec.precision = Precision::native16;
  return spec;
}

std::vector<std::uint8_t> forward_bits(LinearCaseSpec spec, Precision precision) {
  spec.precision = precision;
  LinearCase problem(spec);
  problem.poison_outputs();
  linear_attention_forward(problem.outputs(), problem.forward_inputs(), problem.options());
  return problem.output_bytes();
}

std::vector<std::uint8_t> gradient_bits(LinearCaseSpec spec, Precision precision) {
  spec.precision = precision;
  LinearCase problem(spec);
  problem.poison_gradients();
  linear_attention_backward(problem.gradients(), problem.inputs(), problem.incoming(), problem.options());
  return problem.gradient_bytes();
}

/// Compares a pass with the oracle on every implementation, after `change` of the inputs.
void expect_right_after(const LinearCaseSpec& spec, const std::function<void(const LinearAttentionInputs&)>& change,
                        CheckLinearCase check = check_linear_forward_case) {
  const auto mismatch = verify::check_linear_on_every_target(
      spec, [&](LinearCase& problem, const std::string& /*target*/) -> std::optional<std::string> {
        change(problem.inputs());
        return check(problem, {}, nullptr);
      });
  EXPECT_EQ(mismatch.value_or(""), "");
}

TEST(LinearNative16, BothPasses_CpuWithProducts_AreRounded) {
  for_each_products([](const std::string& products) {
    for (const std::int64_t T : {32, 45, 100}) {
      const LinearCaseSpec spec = native16_spec(T, 24, 40);
      const bool exact = native16_products().empty();
      EXPECT_EQ(forward_bits(spec, Precision::native16) == forward_bits(spec, Precision::exact), exact)
          << products << " T=" << T;
      EXPECT_EQ(gradient_bits(spec, Precision::native16) == gradient_bits(spec, Precision::exact), exact)
          << products << " T=" << T;
    }
  });
}

TEST(LinearNative16, BothPasses_CallsWithoutAKernel_AreExact) {
  for_each_products([](const std::string& products) {
    LinearCaseSpec by_feature = native16_spec(100, 24, 40), tiny = native16_spec(31, 24, 40), packed = tiny;
    by_feature.decay = DecayInput::per_feature;
    packed.T = 62;
    packed.cu_seqlens = DType::i32;
    packed.packed = 2;
    packed.packed_tokens = {31, 31};
    for (const LinearCaseSpec& spec : {by_feature, tiny, packed, native16_spec(1, 24, 40), native16_spec(0, 24, 40)}) {
      EXPECT_EQ(forward_bits(spec, Precision::native16), forward_bits(spec, Precision::exact))
          << products << " " << describe(spec);
      EXPECT_EQ(gradient_bits(spec, Precision::native16), gradient_bits(spec, Precision::exact))
          << products << " " << describe(spec);
    }
  });
}

/// Returns ‖actual − expected‖₂ / ‖expected‖₂.
double relative_error(const TensorView& actual, const std::vector<double>& expected) {
  double error = 0.0, norm = 0.0;
  std::size_t at = 0;
  const auto& [B, H, T, D] = actual.shape;
  for (std::int64_t row = 0; row < B * H * T; ++row) {
    for (std::int64_t d = 0; d < D; ++d) {
      const double want = expected[at++];
      error += std::pow(load(actual, row / (H * T), row / T % H, row % T, d) - want, 2);
      norm += want * want;
    }
  }
  return std::sqrt(error / norm);
}

/// Compares the norm of a gradient's errors with that of the gradient. The oracle's tolerances bound the worst case of
/// one element, in which a missing term may hide. In the norm, rounding errors average.
void expect_gradients_as_near_as_rounding(const LinearCaseSpec& spec, const std::string& products) {
  LinearCase problem(spec);
  linear_attention_backward(problem.gradients(), problem.inputs(), problem.incoming(), problem.options());
  const LinearAttentionGradients& out = problem.gradients();
  const reference::LinearBackward& want = problem.expected_backward();
  const auto expect_near = [&](const char* name, const TensorView& actual, const std::vector<double>& expected) {
    if (!actual.present()) return;
    EXPECT_LT(relative_error(actual, expected), 0.014) << products << " " << name << " of " << describe(spec);
  };
  expect_near("dq", out.dq, want.dq);
  expect_near("dk", out.dk, want.dk);
  expect_near("dv", out.dv, want.dv);
  expect_near("ddecay", out.ddecay, want.ddecay);
  expect_near("dbeta", out.dbeta, want.dbeta);
  expect_near("dstate", out.dstate, want.dstate);
}

TEST(LinearNative16, Gradients_NormOfErrors_IsThatOfRounding) {
  for_each_products([](const std::string& products) {
    for (const auto& [Hq, Hk, Hv] : {std::array{1, 1, 1}, {4, 2, 2}, {1, 1, 2}}) {
      for (const verify::DecayStrength strength : {verify::DecayStrength::zero, verify::DecayStrength::mixed}) {
        LinearCaseSpec spec = native16_spec(100, 32, 40);
        spec.Hq = Hq;
        spec.Hk = Hk;
        spec.Hv = Hv;
        spec.strength = strength;
        expect_gradients_as_near_as_rounding(spec, products);
        spec.rule = LinearRule::gated;
        spec.beta = BetaInput::none;
        expect_gradients_as_near_as_rounding(spec, products);
      }
    }
  });
}

/// The scans compute sequences of few tokens and sequences with growing decays.
TEST(LinearNative16, Gradients_PackedSequencesOfEachKind_MatchTheOracle) {
  LinearCaseSpec spec = native16_spec(0, 24, 40);
  spec.packed_tokens = {40, 5, 33, 0, 70};
  for (const std::int64_t tokens : spec.packed_tokens) spec.T += tokens;
  spec.packed = static_cast<std::int64_t>(spec.packed_tokens.size());
  spec.cu_seqlens = DType::i64;
  spec.decay_f32 = true;
  spec.Hq = spec.Hk = 1;
  spec.Hv = 2;
  for (const BetaInput beta : {BetaInput::headwise, BetaInput::shared}) {
    spec.beta = beta;
    const auto grow = [](const LinearAttentionInputs& in) {
      for (std::int64_t i = 50; i < 60; ++i) store(writable(in.decay), 0, 1, i, 0, 1.0);
    };
    expect_right_after(spec, grow, check_linear_backward_case);
  }
}

TEST(LinearNative16, BothPasses_SizesAroundSquares_MatchTheOracle) {
  for (const std::int64_t T : {32, 33, 63, 64, 65, 97}) expect_both(native16_spec(T, 32, 32));
  for (const std::int64_t D : {1, 2, 15, 16, 17, 31, 33, 64, 65, 128, 256}) {
    expect_both(native16_spec(40, D, 20));
    expect_both(native16_spec(40, 20, D));
  }
}

TEST(LinearNative16, BothPasses_EachRule_MatchTheOracle) {
  for (const LinearRule rule : {LinearRule::linear, LinearRule::gated, LinearRule::delta, LinearRule::gated_delta}) {
    for (const bool norm : {false, true}) {
      LinearCaseSpec spec = native16_spec(75, 24, 40);
      spec.rule = rule;
      if (!spec.may_decay()) spec.decay = DecayInput::none;
      if (!spec.has_delta()) spec.beta = BetaInput::none;
      if (!norm) spec.l2_norm.reset();
      spec.scale = -0.7;
      expect_both(spec);
    }
  }
}

/// Heads that share keys, queries or states; threads that share a state's columns.
TEST(LinearNative16, BothPasses_SharedHeads_MatchTheOracle) {
  for (const auto& [Hq, Hk, Hv] : {std::array{4, 2, 2}, {6, 1, 2}, {1, 1, 4}, {2, 2, 8}, {1, 1, 1}}) {
    for (const Layout layout : {Layout::bhtd, Layout::bthd}) {
      LinearCaseSpec spec = native16_spec(70, 24, 100);
      spec.Hq = Hq;
      spec.Hk = Hk;
      spec.Hv = Hv;
      spec.layout = layout;
      if (layout == Layout::bthd) spec.beta = BetaInput::shared;
      spec.threads = 3;
      expect_both(spec);
      const auto same = verify::check_linear_on_every_target(
          spec, [](LinearCase& problem, const std::string&) { return verify::check_linear_same_bits(problem); });
      EXPECT_EQ(same.value_or(""), "");
    }
  }
}

TEST(LinearNative16, BothPasses_AnyDecay_MatchTheOracle) {
  for (const verify::DecayStrength strength :
       {verify::DecayStrength::zero, verify::DecayStrength::strong, verify::DecayStrength::mixed}) {
    LinearCaseSpec spec = native16_spec(100, 24, 40);
    spec.strength = strength;
    spec.decay_f32 = true;
    expect_both(spec);
  }
  for (const std::int64_t every : {1, 3, 50}) {
    const auto forget = [every](const LinearAttentionInputs& in) {
      for (std::int64_t i = every - 1; i < 100; i += every) store(writable(in.decay), 0, 0, i, 0, -kInfinity);
    };
    expect_right_after(native16_spec(100, 24, 40), forget, check_linear_backward_case);
    expect_right_after(native16_spec(100, 24, 40), [&](const LinearAttentionInputs& in) {
      forget(in);
      for (std::int64_t d = 0; every == 1 && d < 24; ++d) store(writable(in.state), 0, 0, d, 3, 1e30);
    });
  }
}

/// Decays above 0 end chunks early, so that factors stay in range.
TEST(LinearNative16, Decay_AboveZero_MatchesTheOracle) {
  for (const double g : {0.05, 1.0, 3.0, 6.0}) {
    LinearCaseSpec spec = native16_spec(70, 24, 40);
    spec.decay_f32 = true;
    spec.Hq = spec.Hk = 1;
    spec.Hv = 2;
    expect_right_after(spec, [g](const LinearAttentionInputs& in) {
      // 30 tokens in a row, but only of one of the states that share keys
      for (std::int64_t i = 20; i < 50; ++i) store(writable(in.decay), 0, 1, i, 0, i % 8 == 0 ? -7.0 * g : g);
    });
  }
}

TEST(LinearNative16, Values_LargeOrZero_MatchesTheOracle) {
  for (const double x : {0.0, 1e-38, 1e-30, 1e30}) {
    expect_right_after(native16_spec(70, 24, 40), [x](const LinearAttentionInputs& in) {
      for (std::int64_t i = 0; i < 70; i += 2) {
        for (std::int64_t d = 0; d < 40; ++d) store(writable(in.v), 0, 0, i, d, x);
      }
      for (std::int64_t d = 0; d < 24; ++d) store(writable(in.k), 0, 0, 41, d, 0.0);
    });
  }
}

/// NaN reaches the tokens from its own on that it reaches in the recurrence, and only columns of v that read it.
TEST(LinearNative16, NaN_InAnyInput_ReachesWhatItReachesInTheRecurrence) {
  for (const auto input : {&LinearAttentionInputs::q, &LinearAttentionInputs::k, &LinearAttentionInputs::v,
                           &LinearAttentionInputs::decay, &LinearAttentionInputs::beta}) {
    for (const std::int64_t token : {0, 15, 40, 63}) {
      LinearCaseSpec spec = native16_spec(80, 12, 20);
      spec.B = 2;
      spec.Hq = spec.Hk = spec.Hv = 2;
      expect_right_after(
          spec, [input, token](const LinearAttentionInputs& in) { store(writable(in.*input), 0, 1, token, 0, kNaN); });
    }
  }
}

/// Threads share the columns of the state, and columns that are not finite are multiplied in another way.
TEST(LinearNative16, Infinity_InV_AnyNumberOfThreads_GivesTheSameBits) {
  LinearCaseSpec spec = native16_spec(70, 24, 100);
  spec.Hq = spec.Hk = spec.Hv = 1;
  spec.threads = 3;
  const auto same = verify::check_linear_on_every_target(spec, [](LinearCase& problem, const std::string&) {
    store(writable(problem.inputs().v), 0, 0, 5, 0, kInfinity);
    return verify::check_linear_same_bits(problem);
  });
  EXPECT_EQ(same.value_or(""), "");
}

TEST(LinearNative16, Infinity_InV_DoesNotReachEarlierTokensOrOtherColumns) {
  for_each_products([](const std::string& products) {
    const auto outputs = [](double x) {
      LinearCase problem(native16_spec(80, 12, 20));
      store(writable(problem.inputs().v), 0, 0, 40, 7, x);
      linear_attention_forward(problem.outputs(), problem.inputs(), problem.options());
      std::vector<double> y;
      for (std::int64_t i = 0; i < 80; ++i) {
        for (std::int64_t d = 0; d < 20; ++d) y.push_back(load(problem.outputs().y, 0, 0, i, d));
      }
      return y;
    };
    const std::vector<double> plain = outputs(1.0), infinite = outputs(kInfinity);
    for (std::int64_t i = 0; i < 80; ++i) {
      for (std::int64_t d = 0; d < 20; ++d) {
        const double x = infinite[i * 20 + d];
        if (i >= 40 && d == 7) {
          EXPECT_FALSE(std::isfinite(x)) << products << " " << i;
        } else {
          EXPECT_NEAR(x, plain[i * 20 + d], 0.05) << products << " " << i << "," << d;
        }
      }
    }
  });
}

}  // namespace
}  // namespace headgate
