// SPDX-License-Identifier: Apache-2.0
// The oracle's forward pass on problems that can be worked by hand, and against identities of the method.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "verify/case.hpp"
#include "verify/oracle/oracle.hpp"

namespace headgate {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// A dozen roundings of f64.
constexpr double kExact = 12 * 0x1p-53;

/// One head of scalars: q (T), k and v (S), scale 1.
struct Scalars {
  std::vector<double> q, k, v;
  AttentionInputs inputs;
  AttentionOptions options;

  Scalars(std::vector<double> q_in, std::vector<double> k_in, std::vector<double> v_in)
      : q(std::move(q_in)), k(std::move(k_in)), v(std::move(v_in)) {
    const auto column = [](const std::vector<double>& x) {
      return make_view(x.data(), Shape{1, 1, static_cast<std::int64_t>(x.size()), 1});
    };
    inputs.q = column(q);
    inputs.k = column(k);
    inputs.v = column(v);
    options.scale = 1.0;
  }
  reference::Forward forward() const { return reference::forward(inputs, options); }
};

TEST(OracleAnchor, Weights_AnyScores_AreNormalisedExponentials) {
  const Scalars x({1.0}, {0.0, std::log(3.0)}, {8.0, 4.0});
  const reference::Forward out = x.forward();
  EXPECT_NEAR(out.weights[0], 0.25, kExact);
  EXPECT_NEAR(out.weights[1], 0.75, kExact);
  EXPECT_NEAR(out.y[0], 5.0, 8 * kExact);
  EXPECT_NEAR(out.lse[0], std::log(4.0), 2 * kExact);
}

TEST(OracleAnchor, Scale_NotGiven_IsOneOverRootD) {
  const std::vector<double> q(16, 1.0), k(32, 0.5);
  std::vector<double> v{1.0, 2.0};
  AttentionInputs in;
  in.q = make_view(q.data(), Shape{1, 1, 1, 16});
  in.k = make_view(k.data(), Shape{1, 1, 2, 16});
  in.v = make_view(v.data(), Shape{1, 1, 2, 1});
  const reference::Forward out = reference::forward(in, {});
  EXPECT_NEAR(out.lse[0], 2.0 + std::log(2.0), 4 * kExact);  // 16 · ½ / √16
  EXPECT_NEAR(out.y[0], 1.5, 2 * kExact);
}

TEST(OracleAnchor, Sink_OfZero_IsOffByOneSoftmax) {
  Scalars x({1.0}, {0.0, std::log(3.0)}, {10.0, 0.0});
  const double zero = 0.0;
  x.inputs.sinks = make_vector_view(&zero, 1);
  const reference::Forward out = x.forward();
  EXPECT_NEAR(out.weights[0], 0.2, kExact);
  EXPECT_NEAR(out.weights[1], 0.6, kExact);
  EXPECT_NEAR(out.y[0], 2.0, 4 * kExact);
  EXPECT_NEAR(out.lse[0], std::log(5.0), 2 * kExact);
}

TEST(OracleAnchor, Softcap_WithAlibiAndBias_IsAppliedFirst) {
  Scalars x({100.0}, {1.0, -1.0, 0.0}, {1.0, 0.0, 0.0});
  x.options.softcap = 2.0;
  const double slope = 0.25;
  const std::vector<double> bias{0.5, 0.0, -kInfinity};
  x.inputs.alibi_slopes = make_vector_view(&slope, 1);
  x.inputs.bias = make_view(bias.data(), Shape{1, 1, 1, 3});
  const reference::Forward out = x.forward();
  const double s0 = 2.0 - 0.25 * 2 + 0.5;  // the one query stands at key 2
  const double s1 = -2.0 - 0.25 * 1;
  EXPECT_NEAR(out.lse[0], std::log(std::exp(s0) + std::exp(s1)), 4 * kExact);
  EXPECT_NEAR(out.y[0], std::exp(s0) / (std::exp(s0) + std::exp(s1)), 4 * kExact);
  EXPECT_EQ(out.weights[2], 0.0);
}

/// Which keys each row sees, read off the weights.
std::vector<std::vector<int>> seen(const reference::Forward& out, std::size_t T, std::size_t S) {
  std::vector<std::vector<int>> rows(T);
  for (std::size_t i = 0; i < T; ++i) {
    for (std::size_t j = 0; j < S; ++j) {
      if (out.weights[i * S + j] > 0) rows[i].push_back(static_cast<int>(j));
    }
  }
  return rows;
}

TEST(OracleAnchor, Causal_MoreKeysThanQueries_AlignsBottomRight) {
  using Rows = std::vector<std::vector<int>>;
  Scalars wide({0, 0}, {0, 0, 0, 0}, {1, 1, 1, 1});
  wide.options.causality = Causality::causal;
  EXPECT_EQ(seen(wide.forward(), 2, 4), (Rows{{0, 1, 2}, {0, 1, 2, 3}}));

  Scalars tall({0, 0, 0}, {0, 0}, {1, 1});
  tall.options.causality = Causality::causal;
  const reference::Forward out = tall.forward();
  EXPECT_EQ(seen(out, 3, 2), (Rows{{}, {0}, {0, 1}}));
  EXPECT_EQ(out.lse[0], -kInfinity);
  EXPECT_EQ(out.y[0], 0.0);
}

TEST(OracleAnchor, Window_MoreKeysThanQueries_StandsAroundTheAlignedPosition) {
  using Rows = std::vector<std::vector<int>>;
  Scalars x({0, 0}, {0, 0, 0, 0, 0}, {1, 1, 1, 1, 1});
  x.options.window_left = 1;
  x.options.window_right = 0;
  EXPECT_EQ(seen(x.forward(), 2, 5), (Rows{{2, 3}, {3, 4}}));
  x.options.window_left = -1;
  EXPECT_EQ(seen(x.forward(), 2, 5), (Rows{{0, 1, 2, 3}, {0, 1, 2, 3, 4}}));
  x.options.window_left = 0;
  x.options.window_right = -1;
  EXPECT_EQ(seen(x.forward(), 2, 5), (Rows{{3, 4}, {4}}));
}

TEST(OracleAnchor, KeyLengths_Given_HideKeysAndMoveNothing) {
  using Rows = std::vector<std::vector<int>>;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Scalars x({0, 0}, {0, 0, 0, nan}, {1, 1, 1, nan});
  const std::int32_t length = 3;
  x.inputs.key_lengths = make_vector_view(&length, 1);
  x.options.causality = Causality::causal;
  const reference::Forward out = x.forward();
  EXPECT_EQ(seen(out, 2, 4), (Rows{{0, 1, 2}, {0, 1, 2}}));
  EXPECT_NEAR(out.y[1], 1.0, kExact);
}

TEST(OracleAnchor, Row_WithASinkOnly_HasTheSinksLogSumExp) {
  Scalars x({0, 0}, {0}, {1});
  x.options.causality = Causality::causal;
  const float sink = 1.5F;
  x.inputs.sinks = make_vector_view(&sink, 1);
  const reference::Forward out = x.forward();
  EXPECT_EQ(out.lse[0], 1.5);
  EXPECT_EQ(out.y[0], 0.0);
}

TEST(OracleAnchor, Bias_NaNOrInfinity_ChangesItsOwnRowOnly) {
  for (const double broken : {kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
    Scalars x({0, 0}, {0, 0}, {1, 1});
    const std::vector<double> bias{0, broken, 0, 0};
    x.inputs.bias = make_view(bias.data(), Shape{1, 1, 2, 2});
    const reference::Forward out = x.forward();
    EXPECT_TRUE(std::isnan(out.y[0]));
    EXPECT_TRUE(std::isnan(out.lse[0]));
    EXPECT_NEAR(out.y[1], 1.0, kExact);
  }
}

TEST(OracleAnchor, QueryHeads_Grouped_ReadTheKeysOfTheirGroup) {
  const std::vector<double> q(6, 0.0), k(2, 0.0), v{10.0, 20.0};
  AttentionInputs in;
  in.q = make_view(q.data(), Shape{1, 6, 1, 1});
  in.k = make_view(k.data(), Shape{1, 2, 1, 1});
  in.v = make_view(v.data(), Shape{1, 2, 1, 1});
  EXPECT_EQ(reference::forward(in, {}).y, (std::vector<double>{10, 10, 10, 20, 20, 20}));
}

TEST(OracleAnchor, GateFunction_EachValue_IsThatByHand) {
  const double e = std::exp(1.0);
  const auto value = [](GateFn fn, double z) { return reference::gate_value(fn, z).value; };
  EXPECT_EQ(value(GateFn::none, 3.0), 1.0);
  EXPECT_EQ(value(GateFn::identity, 3.0), 3.0);
  EXPECT_EQ(value(GateFn::sigmoid, 0.0), 0.5);
  EXPECT_NEAR(value(GateFn::sigmoid, -1.0), 1 / (1 + e), kExact);
  EXPECT_NEAR(value(GateFn::sigmoid2, 1.0), 2 * e / (1 + e), kExact);
  EXPECT_EQ(value(GateFn::ns_sigmoid, -800.0), 0.5);
  EXPECT_NEAR(value(GateFn::silu, -1.0), -1 / (1 + e), kExact);
  EXPECT_NEAR(value(GateFn::softplus, 1.0), std::log(1 + e), kExact);
  EXPECT_EQ(value(GateFn::softplus, 800.0), 800.0);
  EXPECT_EQ(value(GateFn::silu, -800.0), -0.0);
}

TEST(OracleAnchor, Gate_MultiplyOrAdd_IsApplied) {
  Scalars x({0}, {0}, {6});
  const double z = 0.0;
  x.inputs.gate = make_view(&z, Shape{1, 1, 1, 1});
  EXPECT_EQ(x.forward().y[0], 3.0);
  x.options.gate_op = GateOp::add;
  EXPECT_EQ(x.forward().y[0], 6.5);
  EXPECT_EQ(x.forward().attn[0], 6.0);
}

/// σ(z) · softmax(s) = exp(s) / (N (1 + e^−z)), N = Σ exp(s): a headwise gate is a sink with logit log N − z.
TEST(OracleAnchor, HeadwiseGate_Sigmoid_EqualsExtraSinkMass) {
  for (const double logit : {-2.0, 0.3, 4.0}) {
    Scalars x({0.7}, {0.1, -0.4, 1.2}, {1.0, -2.0, 0.5});
    x.inputs.gate = make_view(&logit, Shape{1, 1, 1, 1});
    const reference::Forward gated = x.forward();
    const double sink = gated.lse[0] - logit;
    x.inputs.gate = {};
    x.inputs.sinks = make_vector_view(&sink, 1);
    EXPECT_NEAR(x.forward().y[0], gated.y[0], 4 * kExact);
  }
}

TEST(OracleAnchor, SigmoidGateGradient_GatedOutput_Suffices) {
  verify::CaseSpec spec;
  spec.T = 5;
  spec.S = 6;
  spec.D = 4;
  spec.Dv = 3;
  spec.dtype = DType::f64;
  spec.gate_input = verify::GateInput::elementwise;
  const verify::Case problem(spec);
  const reference::Forward out = reference::forward(problem.inputs(), problem.options());
  const reference::Backward g = reference::backward(problem.inputs(), problem.incoming(), problem.options());
  const auto* dy = static_cast<const double*>(problem.incoming().dy.data);
  const auto* z = static_cast<const double*>(problem.inputs().gate.data);
  for (std::size_t n = 0; n < out.y.size(); ++n) {
    const double complement = 1.0 - reference::gate_value(GateFn::sigmoid, z[n]).value;
    EXPECT_NEAR(g.dgate[n], dy[n] * out.y[n] * complement, 4 * kExact);
  }
}

TEST(OracleAnchor, Row_ComputedAlone_IsThatOfTheWhole) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const verify::Case problem(verify::random_spec(seed));
    const verify::CaseSpec& s = problem.spec();
    if (s.cu_seqlens != DType::none) continue;  // rows of a packed batch are rows of its sequences
    const reference::Forward all = reference::forward(problem.inputs(), problem.options());
    const std::int64_t b = s.B - 1, h = s.Hq() / 2, i = s.T / 2;
    const reference::Forward row = reference::forward_row(problem.inputs(), problem.options(), b, h, i);
    const std::int64_t at = (b * s.Hq() + h) * s.T + i;
    const auto expect_same = [&](const std::vector<double>& part, const std::vector<double>& whole,
                                 std::int64_t width) {
      ASSERT_EQ(part.size(), static_cast<std::size_t>(width));
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + at * width)) << verify::describe(s);
    };
    expect_same(row.y, all.y, s.Dv);
    expect_same(row.attn, all.attn, s.Dv);
    expect_same(row.lse, all.lse, 1);
    expect_same(row.weights, all.weights, s.S);
  }
}

/// A magnitude below its element would make the tolerance rule too tight to hold.
TEST(OracleAnchor, Magnitudes_AnyProblem_BoundTheirElements) {
  const auto expect_bound = [](const std::vector<double>& value, const std::vector<double>& magnitude) {
    ASSERT_EQ(value.size(), magnitude.size());
    for (std::size_t n = 0; n < value.size(); ++n) {
      if (!std::isfinite(value[n])) continue;
      ASSERT_LE(std::abs(value[n]), magnitude[n] * (1 + 1e-9));
    }
  };
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    verify::CaseSpec spec = verify::random_spec(seed);
    if (spec.values == verify::Values::denormal) spec.values = verify::Values::normal;
    const verify::Case problem(spec);
    const reference::Forward f = reference::forward(problem.inputs(), problem.options());
    expect_bound(f.y, f.magnitude.y);
    expect_bound(f.attn, f.magnitude.attn);
    expect_bound(f.weights, f.magnitude.weights);
    if (spec.forward_only()) continue;
    const reference::Backward g = reference::backward(problem.inputs(), problem.incoming(), problem.options());
    expect_bound(g.dq, g.magnitude.dq);
    expect_bound(g.dk, g.magnitude.dk);
    expect_bound(g.dv, g.magnitude.dv);
    expect_bound(g.dgate, g.magnitude.dgate);
    expect_bound(g.dbias, g.magnitude.dbias);
    expect_bound(g.dsinks, g.magnitude.dsinks);
  }
}

}  // namespace
}  // namespace headgate
