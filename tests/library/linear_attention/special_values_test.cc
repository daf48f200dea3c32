// SPDX-License-Identifier: Apache-2.0
// Linear attention where values are not ordinary: decays that forget everything, NaN and infinities, rows of zeros.

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "library/core/element.hpp"
#include "library/linear_attention/linear_property.hpp"

namespace headgate {
namespace {

using verify::DecayInput;
using verify::LinearCase;
using verify::LinearCaseSpec;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

using Change = std::function<void(const LinearAttentionInputs&)>;

/// Both passes on every target, after `change` of the inputs, beside an oracle that reads the changed ones.
void expect_both_after(const LinearCaseSpec& spec, const Change& change) {
  if (!meets_next_case()) return;
  const auto mismatch = verify::check_linear_on_every_target(
      spec, [&change](LinearCase& problem, const std::string& /*target*/) -> std::optional<std::string> {
        change(problem.inputs());
        if (auto wrong = verify::check_linear_forward_case(problem)) return wrong;
        return verify::check_linear_backward_case(problem);
      });
  EXPECT_EQ(mismatch.value_or(""), "");
}

TEST(LinearSpecialValues, Decay_ThatForgets_LeavesNothingOfAHugeState) {
  for (const DType dtype : kDTypes) {
    for (const double g : {-1000.0, kMinusInfinity}) {
      for (const DecayInput decay : {DecayInput::headwise, DecayInput::per_feature}) {
        for (const std::int64_t token : {0, 63, 64, 69}) {
          LinearCaseSpec spec = gated_delta_spec(70, 12, 20);
          spec.dtype = dtype;
          spec.decay = decay;
          expect_both_after(spec, [g, token](const LinearAttentionInputs& in) {
            for (std::int64_t d = 0; d < in.decay.shape[3]; ++d) store(writable(in.decay), 0, 0, token, d, g);
            if (token > 0) return;
            for (std::int64_t d = 0; d < in.state.shape[2]; ++d) store(writable(in.state), 0, 0, d, 3, 1e30);
          });
        }
      }
    }
  }
}

/// Every token forgets: y is made of the token itself.
TEST(LinearSpecialValues, Decay_MinusInfinityEverywhere_LeavesOneToken) {
  for (const DecayInput decay : {DecayInput::headwise, DecayInput::per_feature}) {
    LinearCaseSpec spec = gated_delta_spec(70, 12, 20);
    spec.decay = decay;
    expect_both_after(spec, [](const LinearAttentionInputs& in) {
      for (std::int64_t i = 0; i < in.decay.shape[2]; ++i) {
        for (std::int64_t d = 0; d < in.decay.shape[3]; ++d) store(writable(in.decay), 0, 0, i, d, kMinusInfinity);
      }
    });
  }
}

/// Decays whose products underflow on the way, while a later token is read as ever.
TEST(LinearSpecialValues, Decay_ThatUnderflowsInSteps_MatchesTheOracle) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const double g : {-1.0, -12.0, -45.0, -80.0, -90.0, -400.0}) {
      LinearCaseSpec spec = gated_delta_spec(90, 12, 20);
      spec.dtype = dtype;
      expect_both_after(spec, [g](const LinearAttentionInputs& in) {
        for (std::int64_t i = 10; i < in.decay.shape[2]; i += 3) store(writable(in.decay), 0, 0, i, 0, g);
      });
    }
  }
}

/// What is NaN in the oracle's plain recurrence is NaN in the kernels, and nothing else is: neither another column of
/// the state nor a token before it.
TEST(LinearSpecialValues, NaN_InAnyInput_ReachesWhatItReachesInThePlainRecurrence) {
  struct Place {
    const char* name;
    ConstTensorView LinearAttentionInputs::*input;
  };
  for (const Place& place : {Place{"q", &LinearAttentionInputs::q},
                             {"k", &LinearAttentionInputs::k},
                             {"v", &LinearAttentionInputs::v},
                             {"decay", &LinearAttentionInputs::decay},
                             {"beta", &LinearAttentionInputs::beta}}) {
    SCOPED_TRACE(place.name);
    LinearCaseSpec spec = gated_delta_spec(100, 12, 20);
    spec.B = 2;
    spec.Hq = spec.Hk = spec.Hv = 2;
    const auto mismatch =
        verify::check_linear_on_every_target(spec, [&](LinearCase& problem, const std::string& /*target*/) {
          store(writable(problem.inputs().*place.input), 0, 1, 40, 0, kNaN);
          if (auto wrong = verify::check_linear_forward_case(problem)) return wrong;
          return verify::check_linear_backward_case(problem);
        });
    EXPECT_EQ(mismatch.value_or(""), "");
  }
}

/// Other heads and batches keep their bits.
TEST(LinearSpecialValues, NaN_InOneHead_LeavesTheGradientsOfOthers) {
  LinearCaseSpec spec = gated_delta_spec(100, 12, 20);
  spec.Hq = spec.Hk = spec.Hv = 3;
  LinearCase problem(spec);
  const auto row = [&problem](std::int64_t h) {
    const LinearAttentionGradients& g = problem.gradients();
    std::vector<double> out;
    for (std::int64_t i = 0; i < 100; ++i) {
      out.push_back(load(g.dq, 0, h, i, 5));
      out.push_back(load(g.dk, 0, h, i, 5));
      out.push_back(load(g.dv, 0, h, i, 5));
      out.push_back(load(g.ddecay, 0, h, i, 0));
      out.push_back(load(g.dbeta, 0, h, i, 0));
    }
    return out;
  };
  const auto run = [&problem] {
    linear_attention_backward(problem.gradients(), problem.inputs(), problem.incoming(), problem.options());
  };
  run();
  const std::vector<double> first = row(0), last = row(2);
  store(writable(problem.inputs().v), 0, 1, 40, 0, kNaN);
  run();
  EXPECT_EQ(row(0), first);
  EXPECT_EQ(row(2), last);
  EXPECT_TRUE(std::isnan(load(problem.gradients().dq, 0, 1, 40, 5)));
}

TEST(LinearSpecialValues, RowsOfDenormals_WithoutEps_HaveANormOfOne) {
  const std::vector<float> qk(4, std::numeric_limits<float>::denorm_min()), v{7.0F};
  for (const std::string& target : supported_targets()) {
    float y = 0;
    LinearAttentionInputs in;
    in.q = in.k = make_view<const float>(qk.data(), {1, 1, 1, 4});
    in.v = make_view<const float>(v.data(), {1, 1, 1, 1});
    LinearAttentionOptions options;
    options.l2_norm = 0.0;
    options.context.target = find_target(target);
    linear_attention_forward({.y = make_view(&y, {1, 1, 1, 1})}, in, options);
    EXPECT_FLOAT_EQ(y, 3.5F) << target;  // 1/√4 · v
  }
}

/// Both passes of q and k whose token 30 is 0, with the norm's `eps`. y must be 0. Returns the sum of the magnitudes of
/// its gradients, NaN if one is.
double sum_of_zero_token(DType dtype, double eps) {
  LinearCaseSpec spec = gated_delta_spec(70, 12, 20);
  spec.dtype = dtype;
  spec.l2_norm = eps;
  LinearCase problem(spec);
  for (std::int64_t d = 0; d < spec.D; ++d) {
    store(writable(problem.inputs().q), 0, 0, 30, d, 0.0);
    store(writable(problem.inputs().k), 0, 0, 30, d, 0.0);
  }
  linear_attention_forward(problem.outputs(), problem.inputs(), problem.options());
  linear_attention_backward(problem.gradients(), problem.inputs(), problem.incoming(), problem.options());
  for (std::int64_t j = 0; j < spec.Dv; ++j) EXPECT_EQ(load(problem.outputs().y, 0, 0, 30, j), 0.0);
  double sum = 0.0;
  for (std::int64_t d = 0; d < spec.D; ++d) {
    sum += std::abs(load(problem.gradients().dq, 0, 0, 30, d)) + std::abs(load(problem.gradients().dk, 0, 0, 30, d));
  }
  return sum;
}

TEST(LinearSpecialValues, RowsOfZeros_WithoutEps_StayZeroWithTheirGradients) {
  for (const DType dtype : kDTypes) EXPECT_EQ(sum_of_zero_token(dtype, 0.0), 0.0);
}

/// 1/√eps is beyond f32: gradients are so large that they may be infinite.
TEST(LinearSpecialValues, RowsOfZeros_TinyEps_StayZeroWithGradientsThatAreNumbers) {
  for (const DType dtype : kDTypes) EXPECT_FALSE(std::isnan(sum_of_zero_token(dtype, 1e-80)));
}

}  // namespace
}  // namespace headgate
