// SPDX-License-Identifier: Apache-2.0
// Checks of the comparison with the oracle: it accepts kernels that are the oracle itself, and reports each kind of
// wrong kernel.

#include "verify/check.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "library/core/check.hpp"
#include "library/core/element.hpp"
#include "verify/tolerance.hpp"
#include "verify/write_all.hpp"

namespace headgate::verify {
namespace {

/// Returns the largest of every `length` values.
std::vector<double> largest_of_runs(const std::vector<double>& values, std::int64_t length) {
  std::vector<double> largest;
  for (auto at = values.begin(); at != values.end(); at += length)
    largest.push_back(*std::max_element(at, at + length));
  return largest;
}

/// The oracle in the kernels' place.
Kernels oracle_kernels() {
  Kernels kernels;
  kernels.forward = [](const AttentionOutputs& out, const AttentionInputs& in, const AttentionOptions& options) {
    const reference::Forward f = reference::forward(in, options);
    write_all(out.y, f.y);
    write_all(out.attn, f.attn);
    write_all(out.lse, f.lse);
    write_all(out.weights, f.weights);
    const std::int64_t T = in.q.shape[2];
    const bool by_head = out.max_logit.present() && out.max_logit.shape[2] != T;
    write_all(out.max_logit, by_head ? largest_of_runs(f.max_logit, T) : f.max_logit);
  };
  kernels.backward = [](const AttentionGradients& out, const AttentionInputs& in, const AttentionSaved&,
                        const AttentionIncoming& incoming, const AttentionOptions& options) {
    require(!in.block_table.present() && !in.k_scale.present(), "a cache has no gradients");
    const reference::Backward g = reference::backward(in, incoming, options);
    write_all(out.dq, g.dq);
    write_all(out.dk, g.dk);
    write_all(out.dv, g.dv);
    write_all(out.dgate, g.dgate);
    write_all(out.dbias, g.dbias);
    write_all(out.dsinks, g.dsinks);
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
  spec.gate_input = GateInput::elementwise;
  spec.bias = {true, false, true, true};
  spec.sinks = DType::f32;
  spec.dlse = DType::f32;
  spec.attn = spec.weights = true;
  return spec;
}

/// Changes element (0,0,0,0) of `view` after the oracle has written it.
void negate_first(const TensorView& view) { store(view, 0, 0, 0, 0, -load(view, 0, 0, 0, 0)); }

std::string mismatch_of(const std::optional<std::string>& mismatch) { return mismatch.value_or("none"); }

TEST(Check, Oracle_CheckedAgainstItself_Passes) {
  const Kernels kernels = oracle_kernels();
  for (const CaseSpec& spec : standard_cases()) {
    if (spec.T > 64 || spec.S > 64) continue;
    Case problem(spec);
    EXPECT_EQ(check_forward_case(problem, kernels), std::nullopt);
    EXPECT_EQ(check_backward_case(problem, kernels), std::nullopt);
  }
}

TEST(Check, BackwardPass_TakingACache_IsNoticed) {
  Kernels kernels = oracle_kernels();
  kernels.backward = [](const AttentionGradients&, const AttentionInputs&, const AttentionSaved& saved,
                        const AttentionIncoming& incoming, const AttentionOptions&) {
    require(saved.y.present() && saved.lse.present() && incoming.dy.present(), "a required tensor is absent");
  };
  CaseSpec paged = full_spec(), quantized = full_spec();
  paged.page = 3;
  paged.key_lengths = DType::i64;
  quantized.quantized = true;
  for (const CaseSpec& spec : {paged, quantized}) {
    Case problem(spec);
    EXPECT_EQ(mismatch_of(check_backward_case(problem, kernels)).find("attention_backward took a cache"), 0U);
  }
}

TEST(Check, FlippedSign_InAnyOutput_IsNoticed) {
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

TEST(Check, FlippedSign_InAnyGradient_IsNoticed) {
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

/// A problem whose sums are of equal terms, where the rule is widest: 257 queries that weigh the keys alike and come
/// with the same incoming gradient.
CaseSpec equal_terms_spec(DType dtype) {
  CaseSpec spec;
  spec.dtype = dtype;
  spec.layout = Layout::broadcast;
  spec.scale = 0.0;
  spec.T = 257;
  spec.S = 3;
  spec.D = 2;
  spec.Dv = 3;
  spec.gate_input = GateInput::headwise;
  spec.bias = {true, false, false, false};
  spec.sinks = DType::f64;
  spec.lse = DType::f64;
  spec.weights = true;
  return spec;
}

/// Element (0,0,0,0) of a right result becomes `factor` times itself.
void scale_first(const TensorView& view, double factor) { store(view, 0, 0, 0, 0, factor * load(view, 0, 0, 0, 0)); }

/// What the check says of kernels that are right but for one element of the gradient.
std::string mismatch_with_gradient_scaled(const CaseSpec& spec, TensorView AttentionGradients::*gradient,
                                          double factor) {
  Kernels kernels = oracle_kernels();
  kernels.backward = [right = kernels.backward, gradient, factor](const auto& out, const auto& in, const auto& saved,
                                                                  const auto& incoming, const auto& o) {
    right(out, in, saved, incoming, o);
    scale_first(out.*gradient, factor);
  };
  Case problem(spec);
  return mismatch_of(check_backward_case(problem, kernels));
}

TEST(Check, SmallRelativeError_SumOfEqualTerms_IsNoticed) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    CaseSpec spec = equal_terms_spec(dtype);
    spec.bias = {};
    spec.sinks = DType::none;
    const double wrong = 1.0 + 256.0 * unit_roundoff(dtype);
    EXPECT_EQ(mismatch_with_gradient_scaled(spec, &AttentionGradients::dv, wrong).find("dv[0,0,0,0]"), 0U);
    // A quarter of the tolerance is not an error.
    EXPECT_EQ(mismatch_with_gradient_scaled(spec, &AttentionGradients::dv, 1.0 + 16.0 * unit_roundoff(dtype)), "none");
  }
}

TEST(Check, DroppedTermOrSign_SumOfEqualTerms_IsNoticed) {
  TensorView AttentionGradients::*const gradients[] = {&AttentionGradients::dv, &AttentionGradients::dbias,
                                                       &AttentionGradients::dsinks};
  const char* const names[] = {"dv[0,0,0,0]", "dbias[0,0,0,0]", "dsinks[0,0,0,0]"};
  for (const DType dtype : {DType::f32, DType::f64}) {
    const CaseSpec spec = equal_terms_spec(dtype);
    for (std::size_t n = 0; n < 3; ++n) {
      EXPECT_EQ(mismatch_with_gradient_scaled(spec, gradients[n], 256.0 / 257.0).find(names[n]), 0U);
      EXPECT_EQ(mismatch_with_gradient_scaled(spec, gradients[n], -1.0).find(names[n]), 0U);
    }
  }
}

TEST(Check, SmallRelativeError_BesideASink_IsNoticed) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    CaseSpec spec = equal_terms_spec(dtype);
    spec.T = 2;
    spec.S = 257;
    spec.bias = {};
    Kernels kernels = oracle_kernels();
    kernels.forward = [right = kernels.forward, dtype](const auto& out, const auto& in, const auto& o) {
      right(out, in, o);
      scale_first(out.weights, 1.0 + 2048.0 * unit_roundoff(dtype));
    };
    Case problem(spec);
    EXPECT_EQ(mismatch_of(check_forward_case(problem, kernels)).find("weights[0,0,0,0]"), 0U);
  }
}

/// Largest |like terms| over |value| of a gradient.
double widest(const std::vector<double>& like_terms, const std::vector<double>& values) {
  double ratio = 0.0;
  for (std::size_t n = 0; n < values.size(); ++n) {
    if (like_terms[n] > 0.0) ratio = std::max(ratio, like_terms[n] / std::abs(values[n]));
  }
  return ratio;
}

TEST(ToleranceRule, ToleranceRule_EqualTerms_IsWiderForThemOnly) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Case equal(equal_terms_spec(dtype));
    const reference::Backward& wide = equal.expected_backward();
    // Blocks of 96: half a block, then the blocks.
    EXPECT_GT(widest(wide.like_terms.dv, wide.dv), 40.0);
    EXPECT_LT(widest(wide.like_terms.dv, wide.dv), 51.0);

    CaseSpec spec;
    spec.dtype = dtype;
    spec.T = spec.S = 200;
    spec.D = spec.Dv = 8;
    spec.bias = {true, false, false, false};
    Case random(spec);  // two of its terms may be near each other by chance
    const reference::Backward& narrow = random.expected_backward();
    EXPECT_LT(widest(narrow.like_terms.dq, narrow.dq), 1.0);
    EXPECT_LT(widest(narrow.like_terms.dk, narrow.dk), 1.0);
    EXPECT_LT(widest(narrow.like_terms.dv, narrow.dv), 1.0);
    EXPECT_LT(widest(narrow.like_terms.dbias, narrow.dbias), 1.0);
  }
}

TEST(Check, Output_NotWritten_IsNoticed) {
  Kernels kernels = oracle_kernels();
  kernels.forward = [](const auto&, const auto&, const auto&) {};
  Case problem(full_spec());
  EXPECT_NE(mismatch_of(check_forward_case(problem, kernels)).find("never written"), std::string::npos);
}

TEST(Check, Write_OutsideTheTensor_IsNoticed) {
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

TEST(Check, ExceptionOrNaN_Thrown_IsNoticed) {
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

TEST(Check, HiddenKeysAndPadding_OfACase_HoldNaN) {
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

TEST(Case, Case_AlignedForTiming_HoldsTheSameProblem) {
  CaseSpec spec = full_spec();
  spec.T = spec.S = 37;
  Case timed(spec, Placement::aligned);
  Case guarded(spec);
  const AttentionInputs& in = timed.inputs();
  const AttentionGradients& gradients = timed.gradients();
  for (const ConstTensorView& view :
       {in.q, in.k, in.v, in.gate, in.bias, in.sinks, timed.incoming().dy, timed.incoming().dlse,
        ConstTensorView(timed.outputs().y), ConstTensorView(timed.outputs().lse), ConstTensorView(gradients.dq),
        ConstTensorView(gradients.dk), ConstTensorView(gradients.dv), ConstTensorView(gradients.dgate)}) {
    ASSERT_TRUE(view.present());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % kAligned_bytes, 0U);
    EXPECT_EQ(view.strides, contiguous_strides(view.shape));
  }
  EXPECT_EQ(timed.expected_forward().y, guarded.expected_forward().y);
  EXPECT_EQ(timed.expected_backward().dv, guarded.expected_backward().dv);
  EXPECT_EQ(check_forward_case(timed), std::nullopt);
  EXPECT_EQ(check_backward_case(timed), std::nullopt);
}

TEST(Case, Case_EachPass_HoldsItsTensors) {
  CaseSpec spec = full_spec();
  const Case forward(spec, Placement::guarded, Passes::forward);
  EXPECT_TRUE(forward.outputs().attn.present() && forward.outputs().weights.present());
  EXPECT_FALSE(forward.incoming().dy.present() || forward.gradients().dq.present());
  spec.attn = spec.weights = false;
  const Case plain(spec);
  EXPECT_FALSE(plain.outputs().attn.present() || plain.outputs().weights.present());
  EXPECT_FALSE(plain.saving_outputs().attn.present());
  spec.gate_fn = GateFn::silu;  // o cannot be recovered from y
  const Case silu(spec);
  EXPECT_FALSE(silu.outputs().attn.present());
  EXPECT_TRUE(silu.saved().attn.present());
}

TEST(Tolerance, Ratio_InfinitiesAndNaN_TellsThemApart) {
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

TEST(RandomSpec, RandomSpecs_Many_ReachEveryFeature) {
  bool fused = false, sinks = false, added = false, half = false, window = false, breaks_none = true, closed = false;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const CaseSpec spec = random_spec(seed);
    fused = fused || spec.layout == Layout::fused;
    sinks = sinks || spec.sinks != DType::none;
    added = added || (spec.gate_input != GateInput::none && spec.gate_op == GateOp::add);
    half = half || spec.dtype == DType::f16;
    window = window || spec.window_left >= 0;
    breaks_none = breaks_none && !spec.bias_breaks;
    closed = closed || spec.closed_share > 0;
  }
  EXPECT_TRUE(fused && sinks && added && half && window && breaks_none && closed);
}

}  // namespace
}  // namespace headgate::verify
