// SPDX-License-Identifier: Apache-2.0
// The comparison with the oracle must itself be able to fail: kernels that are the oracle pass, and each way of being
// wrong is told.

#include "cases/check.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cases/tolerance.hpp"
#include "core/element.hpp"

namespace headgate::cases {
namespace {

void write(const TensorView& to, const std::vector<double>& values) {
  if (!to.present()) return;
  std::size_t at = 0;
  for (std::int64_t a = 0; a < to.shape[0]; ++a) {
    for (std::int64_t b = 0; b < to.shape[1]; ++b) {
      for (std::int64_t c = 0; c < to.shape[2]; ++c) {
        for (std::int64_t d = 0; d < to.shape[3]; ++d) store(to, a, b, c, d, values[at++]);
      }
    }
  }
}

/// The oracle in the kernels' place.
Kernels oracle_kernels() {
  Kernels kernels;
  kernels.forward = [](const AttentionOutputs& out, const AttentionInputs& in, const AttentionOptions& options) {
    const reference::Forward f = reference::forward(in, options);
    write(out.y, f.y);
    write(out.attn, f.attn);
    write(out.lse, f.lse);
    write(out.weights, f.weights);
  };
  kernels.backward = [](const AttentionGradients& out, const AttentionInputs& in, const AttentionSaved&,
                        const AttentionIncoming& incoming, const AttentionOptions& options) {
    const reference::Backward g = reference::backward(in, incoming, options);
    write(out.dq, g.dq);
    write(out.dk, g.dk);
    write(out.dv, g.dv);
    write(out.dgate, g.dgate);
    write(out.dbias, g.dbias);
    write(out.dsinks, g.dsinks);
  };
  return kernels;
}

/// Everything present, nothing else in the way.
CaseSpec full_spec() {
  CaseSpec spec;
  spec.B = spec.Hkv = spec.group = 2;
  spec.T = 5;
  spec.S = 6;
  spec.D = 4;
  spec.Dv = 3;
  spec.gate_grain = GateGrain::elementwise;
  spec.bias = {true, false, true, true};
  spec.sinks = DType::f32;
  spec.dlse = DType::f32;
  spec.attn = spec.weights = true;
  return spec;
}

/// Changes element (0,0,0,0) of `view` after the oracle has written it.
void negate_first(const TensorView& view) { store(view, 0, 0, 0, 0, -load(view, 0, 0, 0, 0)); }

std::string mismatch_of(const std::optional<std::string>& mismatch) { return mismatch.value_or("none"); }

TEST(Check, OraclePassesForItself) {
  const Kernels kernels = oracle_kernels();
  for (const CaseSpec& spec : standard_cases()) {
    if (spec.T > 64 || spec.S > 64) continue;
    Case problem(spec);
    EXPECT_EQ(check_forward_case(problem, kernels), std::nullopt);
    EXPECT_EQ(check_backward_case(problem, kernels), std::nullopt);
  }
}

TEST(Check, NoticesOneFlippedSignInAnyOutput) {
  TensorView AttentionOutputs::*const outputs[] = {&AttentionOutputs::y, &AttentionOutputs::attn,
                                                   &AttentionOutputs::lse, &AttentionOutputs::weights};
  const char* const names[] = {"y[0,0,0,0]", "attn[0,0,0,0]", "lse[0,0,0,0]", "weights[0,0,0,0]"};
  for (std::size_t n = 0; n < 4; ++n) {
    Kernels kernels = oracle_kernels();
    kernels.forward = [right = kernels.forward, output = outputs[n]](const auto& out, const auto& in, const auto& o) {
      right(out, in, o);
      negate_first(out.*output);
    };
    Case problem(full_spec());
    EXPECT_EQ(mismatch_of(check_forward_case(problem, kernels)).find(names[n]), 0U);
  }
}

TEST(Check, NoticesOneFlippedSignInAnyGradient) {
  TensorView AttentionGradients::*const gradients[] = {&AttentionGradients::dq,    &AttentionGradients::dk,
                                                       &AttentionGradients::dv,    &AttentionGradients::dgate,
                                                       &AttentionGradients::dbias, &AttentionGradients::dsinks};
  const char* const names[] = {"dq[0,0,0,0]",    "dk[0,0,0,0]",    "dv[0,0,0,0]",
                               "dgate[0,0,0,0]", "dbias[0,0,0,0]", "dsinks[0,0,0,0]"};
  for (std::size_t n = 0; n < 6; ++n) {
    Kernels kernels = oracle_kernels();
    kernels.backward = [right = kernels.backward, gradient = gradients[n]](
                           const auto& out, const auto& in, const auto& saved, const auto& incoming, const auto& o) {
      right(out, in, saved, incoming, o);
      negate_first(out.*gradient);
    };
    Case problem(full_spec());
    EXPECT_EQ(mismatch_of(check_backward_case(problem, kernels)).find(names[n]), 0U);
  }
}

TEST(Check, NoticesWhatWasNeverWritten) {
  Kernels kernels = oracle_kernels();
  kernels.forward = [](const auto&, const auto&, const auto&) {};
  Case problem(full_spec());
  EXPECT_NE(mismatch_of(check_forward_case(problem, kernels)).find("never written"), std::string::npos);
}

TEST(Check, NoticesAWriteBesideTheTensor) {
  for (const Layout layout : {Layout::bhtd, Layout::gapped, Layout::reversed}) {
    Kernels kernels = oracle_kernels();
    kernels.forward = [right = kernels.forward](const auto& out, const auto& in, const auto& o) {
      right(out, in, o);
      static_cast<float*>(out.y.data)[out.y.strides[3] == 1 ? -1 : 1] = 0.0F;
    };
    CaseSpec spec = full_spec();
    spec.layout = layout;
    Case problem(spec);
    EXPECT_EQ(mismatch_of(check_forward_case(problem, kernels)).find("y: bytes outside"), 0U);
  }
}

TEST(Check, NoticesAnExceptionAndANaN) {
  Kernels kernels = oracle_kernels();
  kernels.backward = [](const auto&, const auto&, const auto&, const auto&, const auto&) { throw Error("no"); };
  Case problem(full_spec());
  EXPECT_EQ(mismatch_of(check_backward_case(problem, kernels)).find("attention_backward threw \"no\""), 0U);

  kernels.forward = [right = oracle_kernels().forward](const auto& out, const auto& in, const auto& o) {
    right(out, in, o);
    store(out.lse, 0, 0, 0, 0, std::nan(""));
  };
  EXPECT_EQ(mismatch_of(check_forward_case(problem, kernels)).find("lse[0,0,0,0] = nan"), 0U);
}

TEST(Check, HiddenKeysAndTheRoomAroundInputsHoldNaN) {
  CaseSpec spec = full_spec();
  spec.layout = Layout::gapped;
  spec.key_lengths = DType::i64;
  const Case problem(spec);
  const ConstTensorView& k = problem.inputs().k;
  EXPECT_TRUE(std::isnan(static_cast<const float*>(k.data)[-1]));
  EXPECT_TRUE(std::isnan(static_cast<const float*>(k.data)[1]));
  for (std::int64_t b = 0; b < spec.B; ++b) {
    const double length = load(problem.inputs().key_lengths, 0, 0, 0, b);
    for (std::int64_t j = 0; j < spec.S; ++j) {
      EXPECT_EQ(std::isnan(load(k, b, 1, j, 2)), static_cast<double>(j) >= length);
    }
  }
}

TEST(Tolerance, RatioTellsInfinitiesAndNaNApart) {
  const double infinity = HUGE_VAL;
  EXPECT_EQ(error_ratio(infinity, 65519.0, 0.5, DType::f16), 0.0);  // 65519.5 would round to infinity
  EXPECT_EQ(error_ratio(infinity, 60000.0, 0.5, DType::f16), infinity);
  EXPECT_EQ(error_ratio(-infinity, 65519.0, 0.5, DType::f16), infinity);
  EXPECT_EQ(error_ratio(-infinity, 8594.0, 8e7, DType::f16), 0.0);  // -8e7 is within the tolerance, and overflows
  EXPECT_EQ(error_ratio(infinity, -8594.0, 8e7, DType::f16), 0.0);
  EXPECT_EQ(error_ratio(-infinity, -infinity, 0.0, DType::f32), 0.0);
  EXPECT_EQ(error_ratio(0.0, -infinity, 1.0, DType::f32), infinity);
  EXPECT_EQ(error_ratio(std::nan(""), 0.0, 1.0, DType::f32), infinity);
  EXPECT_EQ(error_ratio(0.0, std::nan(""), 1.0, DType::f32), infinity);
  EXPECT_EQ(error_ratio(std::nan(""), std::nan(""), 0.0, DType::f32), 0.0);
  EXPECT_EQ(error_ratio(1.5, 1.0, 0.25, DType::f32), 2.0);
}

TEST(RandomSpec, ReachesEveryFeature) {
  bool fused = false, sinks = false, added = false, half = false, window = false, breaks_none = true;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const CaseSpec spec = random_spec(seed);
    fused = fused || spec.layout == Layout::fused;
    sinks = sinks || spec.sinks != DType::none;
    added = added || (spec.gate_grain != GateGrain::none && spec.gate_op == GateOp::add);
    half = half || spec.dtype == DType::f16;
    window = window || spec.window_left >= 0;
    breaks_none = breaks_none && !spec.bias_breaks;
  }
  EXPECT_TRUE(fused && sinks && added && half && window && breaks_none);
}

}  // namespace
}  // namespace headgate::cases
