// SPDX-License-Identifier: Apache-2.0
// The oracle's gradients against central finite differences of its own forward pass, in f64.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "library/core/element.hpp"
#include "library/core/gate_functions.hpp"
#include "verify/case.hpp"
#include "verify/oracle/oracle.hpp"

namespace headgate {
namespace {

using verify::Case;
using verify::CaseSpec;
using verify::GateInput;

/// Σ dy∘y + Σ dlse·lse over the rows whose lse is finite.
double loss(const Case& problem) {
  const AttentionInputs& in = problem.inputs();
  const reference::Forward out = reference::forward(in, problem.options());
  const Shape& n = problem.incoming().dy.shape;
  double sum = 0.0;
  std::size_t row = 0;
  for (std::int64_t b = 0; b < n[0]; ++b) {
    for (std::int64_t h = 0; h < n[1]; ++h) {
      for (std::int64_t i = 0; i < n[2]; ++i, ++row) {
        for (std::int64_t d = 0; d < n[3]; ++d) {
          sum += load(problem.incoming().dy, b, h, i, d) *
                 out.y[row * static_cast<std::size_t>(n[3]) + static_cast<std::size_t>(d)];
        }
        if (problem.incoming().dlse.present() && std::isfinite(out.lse[row])) {
          sum += load(problem.incoming().dlse, b, h, i, 0) * out.lse[row];
        }
      }
    }
  }
  return sum;
}

/// Central difference of the loss in every element of `input`, compared with `gradient`. The step h = 2^-17 balances
/// truncation h² f‴ ~ 1e-10 and rounding u·|loss| / h ~ 1e-11; both stay far below the tolerance.
void expect_gradient(const Case& problem, const ConstTensorView& input, const std::vector<double>& gradient,
                     const std::string& name) {
  constexpr double kStep = 0x1p-17;
  constexpr double kTolerance = 1e-7;
  ASSERT_EQ(gradient.size(), static_cast<std::size_t>(input.present() ? input.numel() : 0)) << name;
  if (!input.present()) return;
  // The case owns this memory and handed out a read-only view.
  const TensorView x(const_cast<void*>(input.data), input.dtype, input.shape, input.strides);
  std::size_t at = 0;
  for (std::int64_t a = 0; a < x.shape[0]; ++a) {
    for (std::int64_t b = 0; b < x.shape[1]; ++b) {
      for (std::int64_t c = 0; c < x.shape[2]; ++c) {
        for (std::int64_t d = 0; d < x.shape[3]; ++d, ++at) {
          const double value = load(x, a, b, c, d);
          if (!std::isfinite(value)) {  // a hidden key: nothing to move
            EXPECT_EQ(gradient[at], 0.0) << name << "[" << at << "]";
            continue;
          }
          store(x, a, b, c, d, value + kStep);
          const double above = loss(problem);
          store(x, a, b, c, d, value - kStep);
          const double below = loss(problem);
          store(x, a, b, c, d, value);
          const double slope = (above - below) / (2 * kStep);
          EXPECT_NEAR(gradient[at], slope, kTolerance * (1.0 + std::abs(slope)))
              << name << "[" << at << "]: " << verify::describe(problem.spec());
        }
      }
    }
  }
}

void expect_gradients(const CaseSpec& spec) {
  const Case problem(spec);
  const AttentionInputs& in = problem.inputs();
  const reference::Backward g = reference::backward(in, problem.incoming(), problem.options());
  expect_gradient(problem, in.q, g.dq, "dq");
  expect_gradient(problem, in.k, g.dk, "dk");
  expect_gradient(problem, in.v, g.dv, "dv");
  expect_gradient(problem, in.gate, g.dgate, "dgate");
  expect_gradient(problem, in.bias, g.dbias, "dbias");
  expect_gradient(problem, in.sinks, g.dsinks, "dsinks");
}

CaseSpec small() {
  CaseSpec spec;
  spec.B = 2;
  spec.Hkv = 1;
  spec.group = 2;
  spec.T = 4;
  spec.S = 5;
  spec.D = 3;
  spec.Dv = 2;
  spec.dtype = DType::f64;
  spec.lse = DType::f64;
  spec.seed = 7;
  return spec;
}

TEST(OracleGradient, Gradients_PlainAttention_MatchDifferences) { expect_gradients(small()); }

TEST(OracleGradient, Gradients_EveryGate_MatchDifferences) {
  for (const GateOp op : {GateOp::mul, GateOp::add}) {
    for (const GateInput grain : {GateInput::headwise, GateInput::elementwise}) {
      for (const auto& [fn, word] : Words<GateFn>::kAll) {
        CaseSpec spec = small();
        spec.B = 1;
        spec.gate_input = grain;
        spec.gate_fn = fn;
        spec.gate_op = op;
        expect_gradients(spec);
      }
    }
  }
}

TEST(OracleGradient, Gradients_EachScoreTerm_MatchDifferences) {
  const auto with = [](const auto& change) {
    CaseSpec spec = small();
    change(spec);
    expect_gradients(spec);
  };
  with([](CaseSpec& s) { s.scale = -0.7; });
  with([](CaseSpec& s) { s.softcap = 0.8; });
  with([](CaseSpec& s) { s.alibi_slopes = DType::f64; });
  with([](CaseSpec& s) { s.sinks = DType::f64; });
  with([](CaseSpec& s) { s.dlse = DType::f64; });
  with([](CaseSpec& s) { s.sinks = s.dlse = DType::f64; });
  with([](CaseSpec& s) { s.sinks = s.dlse = DType::f64, s.sinks_by_query = true; });
  with([](CaseSpec& s) { s.sinks = s.dlse = DType::f64, s.sinks_by_query = s.sinks_by_batch = true; });
  with([](CaseSpec& s) { s.causality = Causality::causal; });
  with([](CaseSpec& s) { s.window_left = 1, s.window_right = 1; });
  with([](CaseSpec& s) { s.mask = {true, true, true, true}; });
  with([](CaseSpec& s) { s.bias = {true, true, true, true}, s.bias_hides = true; });
}

TEST(OracleGradient, BiasGradient_BroadcastDimensions_SumsOverThem) {
  for (unsigned bits = 0; bits < 8; ++bits) {
    CaseSpec spec = small();
    spec.bias = {true, (bits & 1U) != 0, (bits & 2U) != 0, (bits & 4U) != 0};
    expect_gradients(spec);
  }
}

TEST(OracleGradient, Gradients_GroupedHeads_MatchDifferences) {
  CaseSpec spec = small();
  spec.Hkv = 2;
  spec.group = 3;
  spec.T = 2;
  expect_gradients(spec);
}

TEST(OracleGradient, Gradients_RowsThatSeeNoKey_MatchDifferences) {
  CaseSpec spec = small();
  spec.T = 7;  // with S = 5 the first two queries stand before every key
  spec.causality = Causality::causal;
  spec.dlse = DType::f64;
  spec.gate_input = GateInput::headwise;
  spec.gate_op = GateOp::add;
  expect_gradients(spec);
  spec.gate_op = GateOp::mul;
  spec.sinks = DType::f64;
  expect_gradients(spec);
}

TEST(OracleGradient, Gradients_AllFeatures_MatchDifferences) {
  CaseSpec spec = small();
  spec.softcap = 1.3;
  spec.causality = Causality::causal;
  spec.window_left = 3;
  spec.bias = {true, true, false, true};
  spec.bias_hides = true;
  spec.mask = {true, false, true, false};
  spec.alibi_slopes = spec.sinks = spec.dlse = DType::f64;
  spec.gate_input = GateInput::elementwise;
  expect_gradients(spec);
}

}  // namespace
}  // namespace headgate
