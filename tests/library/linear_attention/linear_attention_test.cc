// SPDX-License-Identifier: Apache-2.0
// Compares linear attention with the oracle, forward and backward, on every vector target, by the tolerance rule of
// docs/reference/numerics.md; and its bits over numbers of threads.

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "headgate/linear_attention_statistics.hpp"
#include "library/core/element.hpp"
#include "library/linear_attention/linear_property.hpp"
#include "support/cancellable.hpp"

namespace headgate {
namespace {

using verify::BetaInput;
using verify::check_linear_backward_case;
using verify::check_linear_forward_case;
using verify::DecayInput;
using verify::Layout;
using verify::LinearCaseSpec;

class LinearAttention : public ::testing::TestWithParam<DType> {
 protected:
  static bool holds(const std::string& what, CheckLinearCase check) {
    return holds_on_drawn_problems(what, [check] {
      LinearCaseSpec spec = verify::draw_linear_spec(picked);
      spec.dtype = GetParam();
      if (spec.dtype != DType::bf16) spec.precision = Precision::exact;
      return linear_mismatch(spec, check);
    });
  }
};

TEST_P(LinearAttention, Output_RandomProblems_MatchesTheOracle) {
  EXPECT_TRUE(holds("linear attention is the oracle's", check_linear_forward_case));
}

TEST_P(LinearAttention, Gradients_RandomProblems_MatchTheOracle) {
  EXPECT_TRUE(holds("gradients of linear attention are the oracle's", check_linear_backward_case));
}

INSTANTIATE_TEST_SUITE_P(EveryDType, LinearAttention,
                         ::testing::Values(DType::f32, DType::f64, DType::bf16, DType::f16), dtype_test_name);

TEST(LinearAttention, Output_StandardCases_MatchesTheOracle) {
  for (const LinearCaseSpec& spec : verify::standard_linear_cases()) expect_right(spec, check_linear_forward_case);
}

TEST(LinearAttention, Gradients_StandardCases_MatchTheOracle) {
  for (const LinearCaseSpec& spec : verify::standard_linear_cases()) expect_right(spec, check_linear_backward_case);
}

TEST(LinearAttention, Output_LongSequence_MatchesTheOracle) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    LinearCaseSpec spec = gated_delta_spec(1500, 32, 16);
    spec.dtype = dtype;
    expect_both(spec);
    spec.decay = DecayInput::per_feature;
    expect_both(spec);
    spec.rule = LinearRule::delta;
    spec.decay = DecayInput::none;
    expect_both(spec);
  }
}

/// With β near 2 and keys that lean in one direction, a token turns what the state holds for its key around.
TEST(LinearAttention, Output_BetaToTwoAndCorrelatedKeys_MatchesTheOracle) {
  for (const DType dtype : kDTypes) {
    for (const bool norm : {false, true}) {
      LinearCaseSpec spec = gated_delta_spec(200, 16, 24);
      spec.dtype = dtype;
      spec.rule = LinearRule::delta;
      spec.decay = DecayInput::none;
      spec.correlated_keys = true;
      spec.beta_to_two = true;
      if (!norm) spec.l2_norm.reset();
      expect_both(spec);
    }
  }
}

TEST(LinearAttention, Gradients_OneAloneOrOneAbsent_MatchTheOracle) {
  LinearCaseSpec spec = gated_delta_spec(70, 20, 12);
  spec.Hq = 2;
  spec.Hk = 1;
  spec.Hv = 4;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    spec.dtype = dtype;
    for (unsigned bit = 1; bit <= verify::kLinearDstate; bit <<= 1) {
      spec.absent_gradients = bit;
      expect_right(spec, check_linear_backward_case);
      spec.absent_gradients = 63U & ~bit;
      expect_right(spec, check_linear_backward_case);
    }
    spec.absent_gradients = 63;  // without any gradient, nothing is written
    expect_right(spec, check_linear_backward_case);
  }
}

/// The gradient of A_log is the sum of g ddecay over tokens. Rounding errors in a ddecay that vanishes would exceed it.
TEST(LinearAttention, GradientOfTheRate_AnyDecay_IsAsAccurateAsThePlainRecurrence) {
  const TargetGuard guard;
  for (const DecayInput decay : {DecayInput::headwise, DecayInput::per_feature}) {
    for (const double rate : {0.01, 1.0, 5.0, 20.0, 50.0}) {
      LinearCaseSpec spec = gated_delta_spec(300, 32, 24);
      spec.decay = decay;
      verify::LinearCase problem(spec);
      const ConstTensorView& decays = problem.inputs().decay;
      const TensorView g(const_cast<void*>(decays.data), decays.dtype, decays.shape, decays.strides);
      const std::int64_t count = g.numel();
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t features = g.shape[3];
        const double drawn = -rate * (0.8 + 0.4 * std::fmod(0.618 * static_cast<double>(i), 1.0));
        store(g, 0, 0, i / features, i % features, drawn);
      }
      const std::vector<double>& expected = problem.expected_backward().ddecay;
      for (const std::string& target : supported_targets()) {
        set_target(target);
        linear_attention_backward(problem.gradients(), problem.inputs(), problem.incoming(), problem.options());
        double error = 0.0, terms = 0.0;
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t t = i / g.shape[3], d = i % g.shape[3];
          error += load(g, 0, 0, t, d) * (load(problem.gradients().ddecay, 0, 0, t, d) - expected[i]);
          terms += std::abs(load(g, 0, 0, t, d) * expected[i]);
        }
        EXPECT_LT(std::abs(error), 3e-6 * terms) << target << ", decays around -" << rate;
      }
    }
  }
}

/// Neither what else is asked for nor a state that goes out changes a result.
TEST(LinearAttention, Outputs_AnyCombination_AreBitwiseIdentical) {
  const LinearCaseSpec all = gated_delta_spec(100, 24, 20);
  verify::LinearCase problem(all);
  linear_attention_forward(problem.outputs(), problem.inputs(), problem.options());
  linear_attention_backward(problem.gradients(), problem.inputs(), problem.incoming(), problem.options());
  const auto bits = [](const TensorView& x) {
    const auto* first = static_cast<const float*>(x.data);
    return std::vector<float>(first, first + x.numel());
  };
  const std::vector<float> y = bits(problem.outputs().y);
  problem.poison_outputs();
  linear_attention_forward({problem.outputs().y, {}}, problem.inputs(), problem.options());
  EXPECT_EQ(bits(problem.outputs().y), y);
  for (TensorView LinearAttentionGradients::*const one :
       {&LinearAttentionGradients::dq, &LinearAttentionGradients::dk, &LinearAttentionGradients::dv,
        &LinearAttentionGradients::ddecay, &LinearAttentionGradients::dbeta, &LinearAttentionGradients::dstate}) {
    const std::vector<float> among_others = bits(problem.gradients().*one);
    LinearAttentionGradients alone;
    alone.*one = problem.gradients().*one;
    linear_attention_backward(alone, problem.inputs(), problem.incoming(), problem.options());
    EXPECT_EQ(bits(alone.*one), among_others);
  }
}

/// One token is computed on the state where it lies, or not, by what it reads alone.
TEST(LinearAttention, OneToken_StateWantedOrNotAndAnyThreads_IsBitwiseIdentical) {
  const TargetGuard guard;
  for (const std::int64_t Dv : {20, 64}) {
    for (const DType state : {DType::none, DType::f32, DType::f64}) {
      LinearCaseSpec spec = gated_delta_spec(1, 24, Dv);
      spec.state = state;
      spec.new_state = DType::f64;
      verify::LinearCase problem(spec);
      for (const std::string& target : supported_targets()) {
        set_target(target);
        const TensorView y = problem.outputs().y;
        const auto bits = [&](const LinearAttentionOutputs& outputs, int threads) {
          problem.options().context.threads = threads;
          problem.poison_outputs();
          linear_attention_forward(outputs, problem.inputs(), problem.options());
          const auto* first = static_cast<const float*>(y.data);
          return std::vector<float>(first, first + y.numel());
        };
        const std::vector<float> with_state = bits(problem.outputs(), 1);
        EXPECT_EQ(bits({y, {}}, 1), with_state) << target;
        for (const int threads : {2, 3, 5}) EXPECT_EQ(bits(problem.outputs(), threads), with_state) << target;
      }
    }
  }
}

std::vector<std::uint8_t> bytes_with(verify::LinearCase& problem, int threads) {
  problem.options().context.threads = threads;
  problem.poison_outputs();
  problem.poison_gradients();
  linear_attention_backward(problem.gradients(), problem.inputs(), problem.incoming(), problem.options());
  linear_attention_forward(problem.outputs(), problem.inputs(), problem.options());
  std::vector<std::uint8_t> bytes = problem.output_bytes();
  const std::vector<std::uint8_t> gradients = problem.gradient_bytes();
  bytes.insert(bytes.end(), gradients.begin(), gradients.end());
  return bytes;
}

void expect_same_bits(const LinearCaseSpec& spec) {
  const TargetGuard guard;
  verify::LinearCase problem(spec);
  for (const std::string& target : supported_targets()) {
    set_target(target);
    const std::vector<std::uint8_t> one = bytes_with(problem, 1);
    for (const int threads : {1, 2, 3, 5}) {
      EXPECT_TRUE(bytes_with(problem, threads) == one) << target << ", " << threads << " threads: " << describe(spec);
    }
  }
}

TEST(LinearAttention, OneLongHead_AnyNumberOfThreads_IsBitwiseIdentical) {
  for (const DecayInput decay : {DecayInput::headwise, DecayInput::per_feature}) {
    LinearCaseSpec spec = gated_delta_spec(500, 40, 72);
    spec.decay = decay;
    expect_same_bits(spec);
  }
}

/// Sums of shared gradients meet over states, in the same order.
TEST(LinearAttention, SharedHeads_AnyNumberOfThreads_AreBitwiseIdentical) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t queries : {1, 6, 12}) {
      LinearCaseSpec spec = gated_delta_spec(130, 16, 20);
      spec.B = 2;
      spec.Hq = queries;
      spec.Hk = 2;
      spec.Hv = 6;
      spec.dtype = dtype;
      spec.beta = BetaInput::shared;
      expect_same_bits(spec);
    }
  }
}

TEST(LinearAttention, EveryLayout_AnyNumberOfThreads_IsBitwiseIdentical) {
  for (int layout = 0; layout < 6; ++layout) {
    LinearCaseSpec spec = gated_delta_spec(97, 24, 24);
    spec.B = spec.Hq = spec.Hk = spec.Hv = 2;
    spec.layout = static_cast<Layout>(layout);
    spec.in_place = true;
    expect_same_bits(spec);
  }
}

TEST(LinearAttention, PackedBatch_AnyNumberOfThreads_IsBitwiseIdentical) {
  LinearCaseSpec spec = gated_delta_spec(300, 16, 16);
  spec.Hq = spec.Hk = spec.Hv = 2;
  spec.cu_seqlens = DType::i64;
  spec.packed = 5;
  spec.packed_tokens = {1, 130, 0, 1, 168};
  expect_same_bits(spec);
}

Work forward_of(verify::LinearCase& problem) {
  return {"forward",
          [&](const ExecutionContext& context) {
            LinearAttentionOptions options = problem.options();
            options.context = context;
            linear_attention_forward(problem.outputs(), problem.inputs(), options);
          },
          [&] { return problem.output_bytes(); }};
}

Work backward_of(verify::LinearCase& problem) {
  return {"backward",
          [&](const ExecutionContext& context) {
            LinearAttentionOptions options = problem.options();
            options.context = context;
            linear_attention_backward(problem.gradients(), problem.inputs(), problem.incoming(), options);
          },
          [&] { return problem.gradient_bytes(); }};
}

TEST(LinearAttention, Cancelled_AtAnyPoint_EndsAndAffectsNoLaterCall) {
  LinearCaseSpec spec = gated_delta_spec(200, 24, 24);
  spec.B = 3;
  spec.Hq = spec.Hk = spec.Hv = 4;
  verify::LinearCase problem(spec);
  expect_cancellable(forward_of(problem), 2);
  expect_cancellable(backward_of(problem), 2);
}

TEST(LinearAttention, ManyBatchesWithoutTokens_EveryCall_ReturnsAtOnce) {
  float x = 0.0F;
  const TensorView rows(&x, DType::f32, {std::int64_t{1} << 40, 1, 0, 1}, {0, 0, 0, 0});
  LinearAttentionInputs in;
  in.q = in.k = in.v = rows;
  linear_attention_forward({rows, {}}, in, {});
  LinearAttentionGradients gradients;
  gradients.dq = gradients.dk = gradients.dv = rows;
  linear_attention_backward(gradients, in, {rows, {}}, {});
  LinearAttentionStatistics figures;
  figures.weight_sum = figures.reach = rows;
  linear_attention_statistics(figures, in);
}

}  // namespace
}  // namespace headgate
