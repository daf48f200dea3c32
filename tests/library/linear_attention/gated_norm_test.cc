// SPDX-License-Identifier: Apache-2.0
// Checks the gated norm against the oracle, and the bits that any number of threads must share.

#include "headgate/gated_norm.hpp"

#include <fmt/format.h>

#include <cmath>

#include "library/core/gate_functions.hpp"
#include "library/linear_attention/placed_tensor.hpp"
#include "support/test_runs.hpp"
#include "verify/oracle/gated_norm.hpp"

namespace headgate {
namespace {

/// How (B,H,T,D) lies in memory.
enum class Layout { bhtd, bthd, wide_rows, spread, reversed, features_outside };
constexpr int kLayouts = 6;

Shape strides_of(Layout layout, const Shape& n) {
  const std::int64_t B = n[0], H = n[1], T = n[2], D = n[3];
  switch (layout) {
    case Layout::bhtd: return contiguous_strides(n);
    case Layout::bthd: return {T * H * D, D, H * D, 1};
    case Layout::wide_rows: return {T * H * (D + 8), D + 8, H * (D + 8), 1};
    case Layout::spread: return {T * H * (2 * D + 1), 2 * D + 1, H * (2 * D + 1), 2};
    case Layout::reversed: return {T * H * D, -D, -H * D, -1};
    case Layout::features_outside: return {1, B, B * H, B * H * T};
  }
  return {};
}

struct Spec {
  DType dtype = DType::f32;
  std::int64_t B = 1, H = 2, T = 5, D = 32;
  DType weight = DType::none, gate = DType::none;
  bool weight_of_head = false;
  GateFn gate_fn = GateFn::silu;
  Layout x = Layout::bthd, y = Layout::bthd, z = Layout::bthd;
  double eps = 1e-6, scale = 1.0;
  int threads = 1;
  std::uint64_t seed = 1;
};

std::string describe(const Spec& s) {
  return fmt::format("{} ({},{},{},{}) weight {}{} gate {} {} layouts {} {} {} eps {} scale {} seed {} threads {}",
                     dtype_name(s.dtype), s.B, s.H, s.T, s.D, dtype_name(s.weight), s.weight_of_head ? " of heads" : "",
                     dtype_name(s.gate), word_of(s.gate_fn), static_cast<int>(s.x), static_cast<int>(s.y),
                     static_cast<int>(s.z), s.eps, s.scale, s.seed, s.threads);
}

/// All tensors of a problem, the inputs filled.
struct Problem {
  Spec spec;
  PlacedTensor x, weight, gate, y, dy, dx, dweight, dgate;

  explicit Problem(const Spec& s) : spec(s) {
    const Shape rows{s.B, s.H, s.T, s.D}, weights{1, s.weight_of_head ? s.H : 1, 1, s.D};
    x = {s.dtype, rows, strides_of(s.x, rows)};
    dx = {s.dtype, rows, strides_of(s.x, rows)};
    y = {s.dtype, rows, strides_of(s.y, rows)};
    dy = {s.dtype, rows, strides_of(s.y, rows)};
    gate = {s.gate, rows, strides_of(s.z, rows)};
    dgate = {s.gate == DType::none || s.gate_fn == GateFn::none ? DType::none : s.gate, rows, strides_of(s.z, rows)};
    weight = {s.weight, weights};
    dweight = {s.weight, weights};
    Random random(s.seed);
    x.fill_random(random, s.scale);
    for (PlacedTensor* each : {&weight, &dy}) each->fill_random(random);
    gate.fill_random(random, 4.0);
  }

  GatedNormInputs inputs() const { return {x.view(), weight.view(), gate.view()}; }
  GatedNormOptions options() const { return {spec.eps, spec.gate_fn, {.threads = spec.threads}}; }

  void forward() {
    y.poison();
    gated_norm_forward(y.view(), inputs(), options());
  }
  void backward() {
    for (PlacedTensor* each : {&dx, &dweight, &dgate}) each->poison();
    gated_norm_backward({dx.view(), dweight.view(), dgate.view()}, inputs(), dy.view(), options());
  }
};

void expect_right(Problem& p) {
  const Spec& spec = p.spec;
  SCOPED_TRACE(describe(spec));
  const auto y = reference::gated_norm(p.inputs(), p.options());
  const auto gradients = reference::gated_norm_backward(p.inputs(), p.dy.view(), p.options());
  on_every_target([&] {
    p.forward();
    expect_near("y", p.y, y.y, y.magnitude, spec.dtype, spec.D);
    p.backward();
    const auto& m = gradients.magnitude;
    expect_near("dx", p.dx, gradients.dx, m.dx, spec.dtype, spec.D);
    expect_near("dweight", p.dweight, gradients.dweight, m.dweight, spec.dtype, spec.D + spec.B * spec.H * spec.T);
    expect_near("dgate", p.dgate, gradients.dgate, m.dgate, spec.dtype, spec.D);
  });
}

void expect_right(const Spec& spec) {
  Problem p(spec);
  expect_right(p);
}

Spec full_spec(DType dtype) {
  Spec s;
  s.dtype = s.weight = s.gate = dtype;
  return s;
}

GateFn drawn_gate(Random& random) { return static_cast<GateFn>(draw(random, 0, kGateFunctions.size())); }

Spec random_spec(Random& random, DType dtype) {
  Spec s;
  s.dtype = dtype;
  s.seed = random();
  s.B = draw(random, 0, 9) == 0 ? 0 : draw(random, 1, 3);
  s.H = draw(random, 1, 11);
  s.T = draw(random, 0, 1) == 0 ? draw(random, 0, 5) : draw(random, 1, 100);
  s.D = draw(random, 0, 1) == 0 ? draw(random, 1, 70) : 16 * draw(random, 1, 9);
  if (draw(random, 0, 2) > 0) s.weight = draw_dtype(random, dtype);
  if (draw(random, 0, 2) > 0) s.gate = draw_dtype(random, dtype);
  s.weight_of_head = draw(random, 0, 1) == 0;
  s.gate_fn = drawn_gate(random);
  s.x = static_cast<Layout>(draw(random, 0, kLayouts - 1));
  s.y = draw(random, 0, 1) == 0 ? s.x : static_cast<Layout>(draw(random, 0, kLayouts - 1));
  s.z = draw(random, 0, 1) == 0 ? s.x : static_cast<Layout>(draw(random, 0, kLayouts - 1));
  s.eps = draw(random, 0, 2) == 0 ? 0.0 : std::pow(10.0, static_cast<double>(draw(random, -9, 0)));
  s.threads = static_cast<int>(draw(random, 1, 3));
  return s;
}

class GatedNorm : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, GatedNorm, ::testing::ValuesIn(kFloatDTypes), dtype_test_name);

TEST_P(GatedNorm, RandomProblems_EveryTarget_MatchOracle) {
  Random random(20260102);
  for (std::size_t n = test_runs().value_or(60); n > 0 && !HasFatalFailure(); --n)
    expect_right(random_spec(random, GetParam()));
}

TEST_P(GatedNorm, EveryGateFunction_DenseRows_MatchesOracle) {
  for (const GateFunction& row : kGateFunctions) {
    Spec s = full_spec(GetParam());
    s.gate_fn = row.value;
    s.T = 70;
    expect_right(s);
  }
}

/// The largest and smallest numbers whose squares the compute type does not have, and numbers below its normal ones.
TEST_P(GatedNorm, ExtremeRows_EveryTarget_MatchOracle) {
  const DType dtype = GetParam();
  const bool wide = dtype == DType::f64, half = dtype == DType::f16;
  for (const double scale : {half   ? 3e4
                             : wide ? 1e307
                                    : 1e37,
                             half   ? 1e-6
                             : wide ? 1e-300
                                    : 1e-36,
                             verify::smallest_subnormal(dtype) * 50}) {
    for (const double eps : {0.0, 1e-6, std::min(scale * scale, 1e300), 1e60}) {
      for (const std::int64_t D : {32, 19}) {
        Spec s = full_spec(dtype);
        s.scale = scale;
        s.eps = eps;
        s.D = D;
        Problem p(s);
        if (eps == 0.0) {  // gradients of rows that small are beyond the range of the compute type
          SCOPED_TRACE(describe(s));
          const auto y = reference::gated_norm(p.inputs(), p.options());
          on_every_target([&] {
            p.forward();
            expect_near("y", p.y, y.y, y.magnitude, dtype, D);
          });
        } else {
          expect_right(p);
        }
      }
    }
  }
}

TEST_P(GatedNorm, RowOfZeros_EpsZero_GivesZeros) {
  Spec s = full_spec(GetParam());
  s.eps = 0.0;
  Problem p(s);
  p.x.fill([](auto, auto, std::int64_t i, auto) { return i == 2 ? 0.0 : 1.0; });
  on_every_target([&] {
    p.forward();
    p.backward();
    for (std::int64_t d = 0; d < s.D; ++d) {
      EXPECT_EQ(load(p.y.view(), 0, 1, 2, d), 0.0);
      EXPECT_EQ(load(p.dx.view(), 0, 1, 2, d), 0.0);
      EXPECT_NE(load(p.y.view(), 0, 1, 3, d), 0.0);
    }
  });
}

TEST_P(GatedNorm, NaNAndInfinity_InOneRow_StayInIt) {
  for (const std::int64_t D : {32, 19}) {
    Spec s = full_spec(GetParam());
    s.gate_fn = GateFn::sigmoid;
    s.D = D;
    Problem p(s);
    store(p.x.view(), 0, 0, 1, 3, std::nan(""));
    store(p.x.view(), 0, 1, 3, 5, -kInfinity);
    on_every_target([&] {
      p.forward();
      for (std::int64_t h = 0; h < s.H; ++h) {
        for (std::int64_t i = 0; i < s.T; ++i) {
          for (std::int64_t d = 0; d < D; ++d) {
            const bool due = (h == 0 && i == 1) || (h == 1 && i == 3 && d == 5);
            EXPECT_EQ(std::isnan(load(p.y.view(), 0, h, i, d)), due) << h << " " << i << " " << d;
          }
        }
      }
      EXPECT_EQ(load(p.y.view(), 0, 1, 3, 0), 0.0);
    });
  }
}

TEST_P(GatedNorm, AnyNumberOfThreads_AllResults_AreBitwiseIdentical) {
  for (const Layout layout : {Layout::bthd, Layout::bhtd}) {
    for (const bool weight_of_head : {false, true}) {
      Spec s = full_spec(GetParam());
      s.B = 2;
      s.H = 9;
      s.T = 150;
      s.x = s.y = s.z = layout;
      s.weight_of_head = weight_of_head;
      Problem p(s);
      const auto bits = [&p](int threads) {
        p.spec.threads = threads;
        p.forward();
        p.backward();
        return std::vector{p.y.bits(), p.dx.bits(), p.dweight.bits(), p.dgate.bits()};
      };
      on_every_target([&] {
        const auto one = bits(1);
        for (const int threads : {2, 3}) EXPECT_TRUE(bits(threads) == one) << describe(p.spec);
      });
    }
  }
}

TEST_P(GatedNorm, NoRows_Weight_GetsZeros) {
  Spec s = full_spec(GetParam());
  s.T = 0;
  s.weight_of_head = true;
  Problem p(s);
  p.forward();
  p.backward();
  EXPECT_TRUE(p.dweight.bits() == std::vector<std::uint8_t>(p.dweight.bits().size(), 0));
  EXPECT_FALSE(p.dweight.spilled());
}

TEST(GatedNorm, GateFnNone_WithAGate_IsTheNormAlone) {
  Spec s = full_spec(DType::f32);
  s.gate_fn = GateFn::none;
  Problem p(s);
  p.forward();
  const auto ungated = p.y.bits();
  gated_norm_forward(p.y.view(), {p.x.view(), p.weight.view(), {}}, {});
  EXPECT_TRUE(p.y.bits() == ungated);
}

TEST(GatedNorm, CancelledCall_AnyTask_Throws) {
  Spec s = full_spec(DType::f32);
  s.T = 600;
  Problem p(s);
  for (const int threads : {1, 2}) {
    for (const std::int64_t patience : {0, 1, 3}) {
      for (const bool backward : {false, true}) {
        std::int64_t asked = 0;
        const std::function<bool()> cancelled = [&] { return ++asked > patience; };
        GatedNormOptions options = p.options();
        options.context = {.threads = threads, .cancelled = &cancelled};
        bool thrown = false;
        try {
          backward
              ? gated_norm_backward({p.dx.view(), p.dweight.view(), p.dgate.view()}, p.inputs(), p.dy.view(), options)
              : gated_norm_forward(p.y.view(), p.inputs(), options);
        } catch (const Cancelled&) {
          thrown = true;
        }
        EXPECT_EQ(thrown, asked > patience);
        EXPECT_TRUE(thrown || threads > 1);
      }
    }
  }
}

/// A valid call whose arguments a test spoils.
struct Arguments {
  Problem p{full_spec(DType::bf16)};
  GatedNormInputs inputs = p.inputs();
  TensorView y = p.y.view();
  ConstTensorView dy = p.dy.view();
  GatedNormGradients gradients{p.dx.view(), p.dweight.view(), p.dgate.view()};
  GatedNormOptions options;
};

template <class Spoil>
void expect_forward_error(const Spoil& spoil, const std::string& said) {
  Arguments a;
  spoil(a);
  const auto before = a.p.y.bits();
  expect_refused([&] { gated_norm_forward(a.y, a.inputs, a.options); }, "gated_norm_forward: " + said);
  EXPECT_TRUE(a.p.y.bits() == before) << said;
}

template <class Spoil>
void expect_backward_error(const Spoil& spoil, const std::string& said) {
  Arguments a;
  spoil(a);
  const auto before = a.p.dx.bits(), sums = a.p.dweight.bits();
  expect_refused([&] { gated_norm_backward(a.gradients, a.inputs, a.dy, a.options); }, "gated_norm_backward: " + said);
  EXPECT_TRUE(a.p.dx.bits() == before && a.p.dweight.bits() == sums) << said;
}

TEST(GatedNorm, ForwardArguments_ThatDoNotFit_AreRefusedByName) {
  using A = Arguments;
  expect_forward_error([](A& a) { a.inputs.x = {}; }, "x is required but absent");
  expect_forward_error([](A& a) { a.inputs.x.dtype = DType::i8; }, "x has dtype i8 but must be f32 or f64 or bf16");
  expect_forward_error([](A& a) { a.inputs.x.shape[3] = 0; }, "x has shape (1,2,5,0): D is 0 but must be at least 1");
  expect_forward_error([](A& a) { a.inputs.weight.dtype = DType::f64; },
                       "weight has dtype f64 but must be bf16 or f32");
  expect_forward_error([](A& a) { a.inputs.weight.shape[1] = 3; },
                       "weight has shape (1,3,1,32) but must be (1,1,1,D) = (1,1,1,32) or (1,H,1,D) = (1,2,1,32)");
  expect_forward_error([](A& a) { a.inputs.gate.dtype = DType::f16; }, "gate has dtype f16 but must be bf16 or f32");
  expect_forward_error([](A& a) { a.inputs.gate.shape[3] = 1; },
                       "gate has shape (1,2,5,1) but (B,H,T,D) is (1,2,5,32)");
  expect_forward_error([](A& a) { a.y = {}; }, "y is required but absent");
  expect_forward_error([](A& a) { a.y.dtype = DType::f32; }, "y has dtype f32 but must be bf16");
  expect_forward_error([](A& a) { a.y.shape[2] = 4; }, "y has shape (1,2,4,32) but (B,H,T,D) is (1,2,5,32)");
  expect_forward_error([](A& a) { a.y.data = const_cast<void*>(a.inputs.x.data); }, "y overlaps x in memory");
  expect_forward_error([](A& a) { a.y.strides[2] = 0; }, "y has shape (1,2,5,32) and strides");
  expect_forward_error([](A& a) { a.options.eps = -1.0; }, "eps is -1 but must be at least 0 and finite");
  expect_forward_error([](A& a) { a.options.eps = kInfinity; }, "eps is inf but must be at least 0 and finite");
  expect_forward_error([](A& a) { a.options.eps = std::nan(""); }, "eps is nan but must be at least 0 and finite");
  expect_forward_error([](A& a) { a.options.gate_fn = static_cast<GateFn>(7); },
                       "gate_fn is 7 but must be one of sigmoid, ");
  expect_forward_error([](A& a) { a.options.context.threads = -1; }, "");
}

TEST(GatedNorm, BackwardArguments_ThatDoNotFit_AreRefusedByName) {
  using A = Arguments;
  expect_backward_error([](A& a) { a.dy = {}; }, "dy is required but absent");
  expect_backward_error([](A& a) { a.dy.shape[0] = 2; }, "dy has shape (2,2,5,32) but (B,H,T,D) is (1,2,5,32)");
  expect_backward_error([](A& a) { a.gradients.dx.dtype = DType::f32; }, "dx has dtype f32 but must be bf16");
  expect_backward_error([](A& a) { a.inputs.weight = {}; }, "dweight is asked for but weight is absent");
  expect_backward_error([](A& a) { a.inputs.gate = {}; }, "dgate is asked for but gate is absent");
  expect_backward_error([](A& a) { a.options.gate_fn = GateFn::none; }, "dgate is asked for but gate_fn is none");
  expect_backward_error([](A& a) { a.gradients.dgate.shape[3] = 1; },
                        "dgate has shape (1,2,5,1) but gate has shape (1,2,5,32)");
  expect_backward_error([](A& a) { a.gradients.dx = a.p.dy.view(); }, "dx overlaps dy in memory");
}

}  // namespace
}  // namespace headgate
