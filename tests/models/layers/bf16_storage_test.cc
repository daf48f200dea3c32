// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "library/core/convert.hpp"
#include "models/layers/delta_net_gates.hpp"
#include "models/layers/elementwise.hpp"
#include "models/layers/gate_apply.hpp"
#include "models/layers/rmsnorm.hpp"
#include "models/layers/rope.hpp"
#include "models/layers/support.hpp"
#include "models/layers/swiglu.hpp"

// Compares layers with activations in bf16 with the same layers in f32 on the widened activations: the bits must be
// those of f32 results, rounded once.

namespace headgate::layers {
namespace {

constexpr std::int64_t kN = 5, kH = 3, kD = 37;

/// Holds (N,H,D) in bf16 and, widened, in f32.
struct Both {
  std::vector<BFloat16> narrow;
  std::vector<float> wide;

  explicit Both(Random& random, std::int64_t count = kN * kH * kD) {
    for (const double x : random_values(random, count)) narrow.push_back(to_bf16(static_cast<float>(x)));
    for (const BFloat16 x : narrow) wide.push_back(to_f32(x));
  }

  View<BFloat16, 3> heads(std::int64_t D = kD) { return view_of(narrow, kN, kH, D); }
  View<float, 3> wide_heads(std::int64_t D = kD) { return view_of(wide, kN, kH, D); }
  View<BFloat16, 2> rows(std::int64_t D = kH * kD) { return view_of(narrow, kN, D); }
  View<float, 2> wide_rows(std::int64_t D = kH * kD) { return view_of(wide, kN, D); }

  /// Compares the narrow numbers with the wide ones, rounded.
  void expect_rounded(const char* what) const {
    for (std::size_t i = 0; i < narrow.size(); ++i) {
      ASSERT_EQ(narrow[i].bits, to_bf16(wide[i]).bits)
          << what << '[' << i << "]: " << to_f32(narrow[i]) << " for " << wide[i];
    }
  }
};

class Bf16Storage : public OnTarget {
 protected:
  std::vector<float> vector(std::int64_t n) { return as<float>(random_values(random, n)); }

  Random random{71};
};

TEST_P(Bf16Storage, RmsNorm_EveryPairOfTypes_RoundsTheResultOfF32) {
  Both x(random), y(random);
  const std::vector<float> w = vector(kD);
  std::vector<float> rstd(kN * kH), expected_rstd(kN * kH), wide_y(x.wide.size());
  const NormOptions options{.kind = NormKind::zero_centred, .eps = 1e-5};
  const auto weights = view_of(w, kD);
  rmsnorm_forward<float>(y.wide_heads(), view_of(expected_rstd, kN, kH), x.wide_heads(), weights, options, on());
  rmsnorm_forward<BFloat16>(y.heads(), view_of(rstd, kN, kH), x.heads(), weights, options, on());
  y.expect_rounded("bf16 of bf16");
  EXPECT_EQ(rstd, expected_rstd);
  rmsnorm_forward<BFloat16, float>(y.heads(), view_of(rstd, kN, kH), x.wide_heads(), weights, options, on());
  y.expect_rounded("bf16 of f32");
  rmsnorm_forward<float, BFloat16>(view_of(wide_y, kN, kH, kD), view_of(rstd, kN, kH), x.heads(), weights, options,
                                   on());
  EXPECT_EQ(wide_y, y.wide);
}

TEST_P(Bf16Storage, RmsNormBackward_EveryPairOfTypes_RoundsTheResultOfF32) {
  Both x(random), dy(random), dx(random);
  const std::vector<float> w = vector(kD);
  std::vector<float> rstd(kN * kH, 0.7F), dw(kD, 1.0F), expected_dw(kD, 1.0F);
  const auto backward = [&]<typename DX, typename DY>(View<DX, 3> out, std::vector<float>& sums, View<DY, 3> g,
                                                      ConstView<DX, 3> in) {
    rmsnorm_backward<DX, DY, DX>(out, view_of(sums, kD), g, in, view_of(w, kD), view_of(std::as_const(rstd), kN, kH),
                                 {}, Update::overwrite, on(1));
  };
  backward(dx.wide_heads(), expected_dw, dy.wide_heads(), x.wide_heads());
  backward(dx.heads(), dw, dy.heads(), x.heads());
  dx.expect_rounded("dy in bf16");
  EXPECT_EQ(dw, expected_dw);
  backward(dx.heads(), dw, dy.wide_heads(), x.heads());
  dx.expect_rounded("dy in f32");
}

TEST_P(Bf16Storage, Rope_BothDirections_RoundsTheResultOfF32) {
  Both x(random);
  const std::int64_t half = 15;
  const std::vector<float> cos = vector(kN * half), sin = vector(kN * half);
  const auto table = [&](const std::vector<float>& values) { return view_of(values, kN, half); };
  for (const bool forward : {true, false}) {
    const auto rotate = [&](const auto& view) {
      forward ? rope_forward(view.split(0, 1, kN), table(cos), table(sin), on())
              : rope_backward(view.split(0, 1, kN), table(cos), table(sin), on());
    };
    x.wide.clear();
    for (const BFloat16 number : x.narrow) x.wide.push_back(to_f32(number));
    rotate(x.wide_heads());
    rotate(x.heads());
    x.expect_rounded(forward ? "forward" : "backward");
  }
}

TEST_P(Bf16Storage, Swiglu_ForwardAndBackward_RoundTheResultsOfF32) {
  for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
    Both gate_up(random, kN * 2 * kD), h(random, kN * kD), dh(random, kN * kD), dgate_up(random, kN * 2 * kD);
    swiglu_forward<float>(h.wide_rows(kD), gate_up.wide_rows(2 * kD), activation, on());
    swiglu_forward<BFloat16>(h.rows(kD), gate_up.rows(2 * kD), activation, on());
    h.expect_rounded("h");
    Both again(random, kN * kD);
    swiglu_backward<float>(dgate_up.wide_rows(2 * kD), again.wide_rows(kD), dh.wide_rows(kD), gate_up.wide_rows(2 * kD),
                           activation, on());
    swiglu_backward<BFloat16>(dgate_up.rows(2 * kD), again.rows(kD), dh.rows(kD), gate_up.rows(2 * kD), activation,
                              on());
    dgate_up.expect_rounded("dgate_up");
    again.expect_rounded("h, again");
  }
}

TEST_P(Bf16Storage, Silu_ForwardAndBackward_RoundTheResultsOfF32) {
  Both x(random), y(random), dx(random);
  silu_forward<float>(y.wide_heads(), x.wide_heads(), on());
  silu_forward<BFloat16>(y.heads(), x.heads(), on());
  y.expect_rounded("y");
  Both dy(random);
  silu_backward<float>(dx.wide_heads(), dy.wide_heads(), x.wide_heads(), on());
  silu_backward<BFloat16>(dx.heads(), dy.heads(), x.heads(), on());
  dx.expect_rounded("dx");
}

TEST_P(Bf16Storage, Gates_ForwardAndBackward_RoundTheResultsOfF32) {
  for (const std::int64_t F : {kD, std::int64_t{1}}) {
    for (const GateRule rule : {GateRule{GateFn::sigmoid, GateOp::mul}, GateRule{GateFn::silu, GateOp::add}}) {
      Both u(random), y(random), z(random, kN * kH * F), dy(random), du(random), dz(random, kN * kH * F);
      gate_apply<float>(y.wide_heads(), u.wide_heads(), z.wide_heads(F), rule, Update::overwrite, on());
      gate_apply<BFloat16>(y.heads(), u.heads(), z.heads(F), rule, Update::overwrite, on());
      y.expect_rounded("y");
      std::vector<float> wide(u.wide.size());
      gate_apply<float, BFloat16>(view_of(wide, kN, kH, kD), u.heads(), z.heads(F), rule, Update::overwrite, on());
      EXPECT_EQ(wide, y.wide);
      gate_apply_backward<float>(du.wide_heads(), dz.wide_heads(F), dy.wide_heads(), u.wide_heads(), z.wide_heads(F),
                                 rule, on());
      gate_apply_backward<BFloat16>(du.heads(), dz.heads(F), dy.heads(), u.heads(), z.heads(F), rule, on());
      du.expect_rounded("du");
      dz.expect_rounded("dz");
    }
  }
}

TEST_P(Bf16Storage, SharedGate_ForwardAndBackward_RoundTheResultsOfF32) {
  Both z(random), g(random, kN * kD), dg(random), dz(random);
  shared_gate<float>(g.wide_rows(kD), z.wide_heads(), GateFn::sigmoid, on());
  shared_gate<BFloat16>(g.rows(kD), z.heads(), GateFn::sigmoid, on());
  g.expect_rounded("g");
  shared_gate_backward<float>(dz.wide_heads(), dg.wide_heads(), z.wide_heads(), GateFn::sigmoid, on());
  shared_gate_backward<BFloat16>(dz.heads(), dg.heads(), z.heads(), GateFn::sigmoid, on());
  dz.expect_rounded("dz");
}

TEST_P(Bf16Storage, DeltaGates_ForwardAndBackward_AreThoseOfF32) {
  Both a(random, kN * kH), b(random, kN * kH), da(random, kN * kH), db(random, kN * kH);
  const std::vector<float> a_log = vector(kH), dt_bias = vector(kH), dbeta = vector(kN * kH);
  const DeltaGates<float> wide{a.wide_rows(kH), b.wide_rows(kH), view_of(a_log, kH), view_of(dt_bias, kH), 2.0};
  const DeltaGates<BFloat16> narrow{a.rows(kH), b.rows(kH), view_of(a_log, kH), view_of(dt_bias, kH), 2.0};
  std::vector<float> decay(kN * kH), beta(kN * kH), expected_decay(kN * kH), expected_beta(kN * kH);
  delta_gates_forward<float>(view_of(expected_decay, kN, kH), view_of(expected_beta, kN, kH), wide, on());
  delta_gates_forward<BFloat16>(view_of(decay, kN, kH), view_of(beta, kN, kH), narrow, on());
  EXPECT_EQ(decay, expected_decay);
  EXPECT_EQ(beta, expected_beta);
  std::vector<float> ddecay = vector(kN * kH), expected_ddecay = ddecay;
  const auto of_decay = view_of(std::as_const(decay), kN, kH);
  delta_gates_backward<float>(da.wide_rows(kH), db.wide_rows(kH), view_of(expected_ddecay, kN, kH),
                              view_of(dbeta, kN, kH), of_decay, wide, on());
  delta_gates_backward<BFloat16>(da.rows(kH), db.rows(kH), view_of(ddecay, kN, kH), view_of(dbeta, kN, kH), of_decay,
                                 narrow, on());
  da.expect_rounded("da");
  db.expect_rounded("db");
  EXPECT_EQ(ddecay, expected_ddecay);
}

TEST_P(Bf16Storage, BiasesAndColumnSums_AreThoseOfF32) {
  Both x(random);
  const std::vector<float> bias = vector(kH * kD);
  std::vector<float> sums(kH * kD, 1.0F), expected_sums = sums;
  add_column_sums<float, BFloat16>(view_of(sums, kH * kD), x.rows(), on());
  add_column_sums<float>(view_of(expected_sums, kH * kD), x.wide_rows(), on());
  EXPECT_EQ(sums, expected_sums);
  add_bias<float>(x.wide_rows(), view_of(bias, kH * kD), on());
  add_bias<BFloat16>(x.rows(), view_of(bias, kH * kD), on());
  x.expect_rounded("x");
}

TEST_P(Bf16Storage, Copy_NumbersThatF32HoldsAlone_AreRoundedToNearest) {
  Both x(random);
  x.wide = as<float>(random_values(random, std::ssize(x.narrow)));
  x.wide[3] = std::numeric_limits<float>::infinity();
  x.wide[kD] = std::nanf("");
  copy_to<BFloat16, float>(x.rows().flat(), x.wide_rows().flat(), on());
  x.expect_rounded("x");
}

INSTANTIATE_TEST_SUITE_P(Targets, Bf16Storage, ::testing::ValuesIn(supported_targets()), target_label);

}  // namespace
}  // namespace headgate::layers
