// SPDX-License-Identifier: Apache-2.0
// Checks the short convolution against the oracle, and the bits that its layouts, calls and threads must share.

#include "headgate/short_convolution.hpp"

#include <fmt/format.h>

#include <cmath>

#include "library/linear_attention/placed_tensor.hpp"
#include "support/test_runs.hpp"
#include "verify/oracle/short_convolution.hpp"

namespace headgate {
namespace {

/// How (B,1,T,C) lies in memory.
enum class Layout { btc, bct, wide_rows, spread, reversed, bct_reversed, batch_inside };
constexpr int kLayouts = 7;

Shape strides_of(Layout layout, const Shape& n) {
  const std::int64_t B = n[0], T = n[2], C = n[3];
  switch (layout) {
    case Layout::btc: return {T * C, T * C, C, 1};
    case Layout::bct: return {T * C, T * C, 1, T};
    case Layout::wide_rows: return {T * (C + 5), 1, C + 5, 1};
    case Layout::spread: return {T * (2 * C + 3), 1, 2 * C + 3, 2};
    case Layout::reversed: return {-T * C, 1, -C, 1};
    case Layout::bct_reversed: return {T * C, 1, -1, T};
    case Layout::batch_inside: return {1, 1, B * C, B};
  }
  return {};
}

struct Spec {
  DType dtype = DType::f32;
  std::int64_t B = 1, T = 20, C = 19, K = 4;
  std::vector<std::int64_t> lengths{};  ///< of packed sequences; empty: not packed
  DType weight = DType::f32, bias = DType::none, state = DType::none, new_state = DType::none, dstate = DType::none;
  GateFn activation = GateFn::silu;
  Layout x = Layout::btc, y = Layout::btc;
  bool transposed_weight = false;
  int threads = 1;
  double scale = 1.0;
  std::uint64_t seed = 1;

  std::int64_t sequences() const { return lengths.empty() ? B : static_cast<std::int64_t>(lengths.size()); }
};

std::string describe(const Spec& s) {
  return fmt::format("{} ({},1,{},{}) K {} lengths [{}] activation {} layouts {} {} seed {} threads {}",
                     dtype_name(s.dtype), s.B, s.T, s.C, s.K, fmt::join(s.lengths, ","), static_cast<int>(s.activation),
                     static_cast<int>(s.x), static_cast<int>(s.y), s.seed, s.threads);
}

/// All tensors of a problem, the inputs filled.
struct Problem {
  Spec spec;
  PlacedTensor x, weight, bias, state, y, new_state, dy, new_dstate, dx, dweight, dbias, dstate;
  std::vector<std::int64_t> bounds{0};

  explicit Problem(const Spec& s) : spec(s) {
    const Shape rows{s.B, 1, s.T, s.C}, states{s.sequences(), 1, s.K - 1, s.C}, taps{1, 1, s.C, s.K};
    const Shape tap_strides = s.transposed_weight ? Shape{1, 1, 1, s.C} : contiguous_strides(taps);
    x = {s.dtype, rows, strides_of(s.x, rows)};
    dy = {s.dtype, rows, strides_of(s.y, rows)};
    y = {s.dtype, rows, strides_of(s.y, rows)};
    dx = {s.dtype, rows, strides_of(s.x, rows)};
    weight = {s.weight, taps, tap_strides};
    dweight = {s.weight, taps, tap_strides};
    bias = {s.bias, {1, 1, 1, s.C}};
    dbias = {s.bias, {1, 1, 1, s.C}};
    state = {s.state, states};
    dstate = {s.state, states, strides_of(Layout::bct, states)};
    new_state = {s.new_state, states, strides_of(Layout::bct, states)};
    new_dstate = {s.dstate, states};
    for (const std::int64_t n : s.lengths) bounds.push_back(bounds.back() + n);
    Random random(s.seed);
    for (PlacedTensor* each : {&x, &weight, &bias, &state, &dy, &new_dstate}) each->fill_random(random, s.scale);
  }

  ShortConvolutionInputs inputs() const {
    ShortConvolutionInputs in{x.view(), weight.view(), bias.view(), state.view(), {}};
    if (!spec.lengths.empty())
      in.cu_seqlens = make_vector_view(bounds.data(), static_cast<std::int64_t>(bounds.size()));
    return in;
  }
  ShortConvolutionOptions options() const { return {spec.activation, {.threads = spec.threads}}; }

  void forward() {
    y.poison();
    new_state.poison();
    short_convolution_forward({y.view(), new_state.view()}, inputs(), options());
  }
  void backward() {
    for (PlacedTensor* each : {&dx, &dweight, &dbias, &dstate}) each->poison();
    short_convolution_backward({dx.view(), dweight.view(), dbias.view(), dstate.view()}, inputs(),
                               {dy.view(), new_dstate.view()}, options());
  }
};

void expect_right(const Spec& spec) {
  SCOPED_TRACE(describe(spec));
  Problem p(spec);
  const auto y = reference::short_convolution(p.inputs(), p.options());
  const auto gradients =
      reference::short_convolution_backward(p.inputs(), {p.dy.view(), p.new_dstate.view()}, p.options());
  on_every_target([&] {
    p.forward();
    expect_near("y", p.y, y.y, y.magnitude.y, spec.dtype, spec.K + 1);
    expect_near("state", p.new_state, y.state, y.magnitude.state, spec.dtype, 1);
    p.backward();
    const auto& m = gradients.magnitude;
    const std::int64_t rows = spec.B * spec.T;
    expect_near("dx", p.dx, gradients.dx, m.dx, spec.dtype, 2 * spec.K + 2);
    expect_near("dweight", p.dweight, gradients.dweight, m.dweight, spec.dtype, rows + spec.K);
    expect_near("dbias", p.dbias, gradients.dbias, m.dbias, spec.dtype, rows + spec.K);
    expect_near("dstate", p.dstate, gradients.dstate, m.dstate, spec.dtype, 2 * spec.K + 2);
  });
}

/// With bias, state and all gradients.
Spec full_spec(DType dtype) {
  Spec s;
  s.dtype = dtype;
  s.weight = s.bias = s.state = s.new_state = s.dstate = dtype;
  return s;
}

Spec random_spec(Random& random, DType dtype) {
  Spec s;
  s.dtype = dtype;
  s.seed = random();
  s.B = draw(random, 0, 9) == 0 ? 0 : draw(random, 1, 3);
  s.T = draw(random, 0, 1) == 0 ? draw(random, 0, 12) : draw(random, 1, 700);
  s.C = draw(random, 0, 1) == 0 ? draw(random, 1, 40) : draw(random, 1, 150);
  s.K = draw(random, kMinTaps, kMaxTaps);
  if (draw(random, 0, 2) == 0) {
    s.B = 1;
    s.T = 0;
    for (std::int64_t n = draw(random, 1, 9); n > 0; --n) {
      s.lengths.push_back(draw(random, 0, 1) == 0 ? draw(random, 0, s.K) : draw(random, 0, 200));
      s.T += s.lengths.back();
    }
  }
  s.weight = draw_dtype(random, dtype);
  if (draw(random, 0, 1) == 0) s.bias = draw_dtype(random, dtype);
  if (draw(random, 0, 1) == 0) s.state = draw_dtype(random, dtype);
  if (draw(random, 0, 1) == 0) s.new_state = draw_dtype(random, dtype);
  if (draw(random, 0, 1) == 0) s.dstate = draw_dtype(random, dtype);
  s.activation = draw(random, 0, 2) == 0 ? GateFn::none : GateFn::silu;
  s.x = static_cast<Layout>(draw(random, 0, kLayouts - 1));
  s.y = draw(random, 0, 2) > 0 ? s.x : static_cast<Layout>(draw(random, 0, kLayouts - 1));
  s.transposed_weight = draw(random, 0, 1) == 0;
  s.threads = static_cast<int>(draw(random, 1, 3));
  return s;
}

class ShortConvolution : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, ShortConvolution, ::testing::ValuesIn(kFloatDTypes), dtype_test_name);

TEST_P(ShortConvolution, RandomProblems_EveryTarget_MatchOracle) {
  Random random(20260101);
  for (std::size_t n = test_runs().value_or(60); n > 0 && !HasFatalFailure(); --n)
    expect_right(random_spec(random, GetParam()));
}

TEST_P(ShortConvolution, EveryNumberOfTaps_BothDirections_MatchOracle) {
  for (std::int64_t K = kMinTaps; K <= kMaxTaps; ++K) {
    for (const Layout layout : {Layout::btc, Layout::bct}) {
      Spec s = full_spec(GetParam());
      s.K = K;
      s.T = 301;
      s.C = 67;
      s.x = s.y = layout;
      expect_right(s);
      s.T = K - 2;
      s.B = 2;
      expect_right(s);
    }
  }
}

TEST_P(ShortConvolution, SmallAndLargeNumbers_EveryTarget_MatchOracle) {
  for (const double scale : {1e-20, 1e-3, 20.0, GetParam() == DType::f16 ? 40.0 : 1e9}) {
    Spec s = full_spec(GetParam());
    s.T = 50;
    s.scale = scale;
    expect_right(s);
  }
}

TEST(ShortConvolution, SumsBeyondTheRange_OfF32_AreInfinite) {
  Spec s;
  s.C = 1;
  s.K = 2;
  s.activation = GateFn::none;
  Problem p(s);
  p.x.fill([](auto...) { return 3e38; });
  p.weight.fill([](auto...) { return 2.0; });
  p.forward();
  EXPECT_EQ(load(p.y.view(), 0, 0, 5, 0), kInfinity);
}

TEST_P(ShortConvolution, NaN_InOneElement_ReachesTheTokensThatReadIt) {
  for (const Layout layout : {Layout::btc, Layout::bct, Layout::spread}) {
    Spec s = full_spec(GetParam());
    s.T = 90;
    s.x = s.y = layout;
    Problem p(s);
    constexpr std::int64_t kToken = 40, kChannel = 7;
    store(p.x.view(), 0, 0, kToken, kChannel, std::nan(""));
    on_every_target([&] {
      p.forward();
      p.backward();
      for (std::int64_t t = 0; t < s.T; ++t) {
        for (std::int64_t c = 0; c < s.C; ++c) {
          const bool reads = c == kChannel && t >= kToken && t < kToken + s.K;
          EXPECT_EQ(std::isnan(load(p.y.view(), 0, 0, t, c)), reads) << t << " " << c;
          const bool read_by = c == kChannel && t > kToken - s.K && t < kToken + s.K;
          EXPECT_EQ(std::isnan(load(p.dx.view(), 0, 0, t, c)), read_by) << t << " " << c;
        }
      }
      for (std::int64_t c = 0; c < s.C; ++c) EXPECT_EQ(std::isnan(load(p.dweight.view(), 0, 0, c, 0)), c == kChannel);
      EXPECT_FALSE(p.y.spilled() || p.dx.spilled());
    });
  }
}

struct Bits {
  std::vector<std::uint8_t> y, state, dx, dweight, dbias, dstate;
  bool operator==(const Bits&) const = default;
};

Bits bits_of(Problem& p) {
  p.forward();
  p.backward();
  return {p.y.bits(), p.new_state.bits(), p.dx.bits(), p.dweight.bits(), p.dbias.bits(), p.dstate.bits()};
}

TEST_P(ShortConvolution, AnyNumberOfThreads_AllResults_AreBitwiseIdentical) {
  for (const Layout layout : {Layout::btc, Layout::bct, Layout::spread}) {
    for (const std::vector<std::int64_t>& lengths :
         {std::vector<std::int64_t>(), std::vector<std::int64_t>{0, 300, 2, 1, 500, 0, 97}}) {
      Spec s = full_spec(GetParam());
      s.T = 900;
      s.C = 131;
      s.lengths = lengths;
      s.x = s.y = layout;
      Problem p(s);
      on_every_target([&] {
        p.spec.threads = 1;
        const Bits one = bits_of(p);
        for (const int threads : {2, 3}) {
          p.spec.threads = threads;
          EXPECT_TRUE(bits_of(p) == one) << describe(p.spec);
        }
      });
    }
  }
}

TEST_P(ShortConvolution, AnyLayout_ForwardPass_IsBitwiseIdentical) {
  Spec s = full_spec(GetParam());
  s.B = 2;
  s.T = 130;
  s.C = 70;
  on_every_target([&] {
    s.x = s.y = Layout::btc;
    s.transposed_weight = false;
    Problem plain(s);
    plain.forward();
    s.transposed_weight = true;
    for (int x = 0; x < kLayouts; ++x) {
      for (const int y : {0, x}) {
        s.x = static_cast<Layout>(x);
        s.y = static_cast<Layout>(y);
        Problem p(s);
        p.forward();
        EXPECT_TRUE(p.y.bits() == plain.y.bits()) << describe(s);
        EXPECT_TRUE(p.new_state.bits() == plain.new_state.bits()) << describe(s);
      }
    }
  });
}

/// Runs tokens begin … end of a problem from the state that `state` holds, which is updated in place.
void run_part(Problem& p, std::int64_t begin, std::int64_t end, const TensorView& state) {
  const auto part = [&](auto view) {
    using Element = std::conditional_t<std::is_same_v<decltype(view), TensorView>, std::uint8_t, const std::uint8_t>;
    view.data =
        static_cast<Element*>(view.data) + begin * view.strides[2] * static_cast<std::int64_t>(dtype_bytes(view.dtype));
    view.shape[2] = end - begin;
    return view;
  };
  ShortConvolutionInputs in = p.inputs();
  in.x = part(in.x);
  in.state = state;
  short_convolution_forward({part(p.y.view()), state}, in, p.options());
}

TEST_P(ShortConvolution, SequenceInParts_StateInPlace_HasTheBitsOfOneCall) {
  for (const Layout layout : {Layout::btc, Layout::bct}) {
    for (const std::int64_t K : {2, 4, 8}) {
      Spec s = full_spec(GetParam());
      s.B = 2;
      s.T = 150;
      s.C = 37;
      s.K = K;
      s.x = s.y = layout;
      Problem p(s);
      on_every_target([&] {
        p.forward();
        const auto y = p.y.bits(), last = p.new_state.bits();
        for (const std::int64_t step : {std::int64_t{1}, K - 1, std::int64_t{64}, std::int64_t{149}}) {
          if (step == 0) continue;
          PlacedTensor state(GetParam(), p.state.view().shape);
          state.fill([&](auto... at) { return load(p.state.view(), at...); });
          p.y.poison();
          for (std::int64_t t = 0; t < s.T; t += step) run_part(p, t, std::min(t + step, s.T), state.view());
          EXPECT_TRUE(p.y.bits() == y) << describe(s) << " step " << step;
          EXPECT_TRUE(state.bits() == last) << describe(s) << " step " << step;
          EXPECT_FALSE(state.spilled() || p.y.spilled());
        }
      });
    }
  }
}

TEST_P(ShortConvolution, Snapshots_StateInPlace_HaveTheBitsOfStatesBetweenParts) {
  for (const Layout layout : {Layout::btc, Layout::bct}) {
    for (const std::int64_t K : {2, 4, 8}) {
      Spec s = full_spec(GetParam());
      s.T = 150;
      s.C = 37;
      s.K = K;
      s.x = s.y = layout;
      Problem p(s);
      const std::vector<std::int64_t> lengths{0, 1, 1, K, 64, s.T};
      const auto M = static_cast<std::int64_t>(lengths.size());
      PlacedTensor state(GetParam(), p.state.view().shape), step(GetParam(), p.state.view().shape);
      PlacedTensor snapshots(GetParam(), {M, 1, K - 1, s.C}, strides_of(Layout::spread, {M, 1, K - 1, s.C}));
      on_every_target([&] {
        p.forward();
        const auto y = p.y.bits(), last = p.new_state.bits();
        for (PlacedTensor* copy : {&state, &step}) copy->fill([&](auto... at) { return load(p.state.view(), at...); });
        snapshots.poison();
        ShortConvolutionInputs in = p.inputs();
        in.state = state.view();
        in.snapshot_lengths = make_view(lengths.data(), {1, 1, 1, M});
        short_convolution_forward({p.y.view(), state.view(), snapshots.view()}, in, p.options());
        EXPECT_TRUE(p.y.bits() == y && state.bits() == last) << describe(s);
        EXPECT_FALSE(snapshots.spilled() || state.spilled());
        const std::vector<std::uint8_t> found = snapshots.bits();
        std::int64_t from = 0;
        for (std::int64_t m = 0; m < M; from = lengths[m++]) {
          run_part(p, from, lengths[m], step.view());
          const std::vector<std::uint8_t> expected = step.bits();
          EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                                 found.begin() + m * static_cast<std::int64_t>(expected.size())))
              << describe(s) << " snapshot " << m;
        }
      });
    }
  }
}

TEST_P(ShortConvolution, OneTokenEach_StateInPlace_HasTheBitsOfABufferedCall) {
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>(), std::vector<std::int64_t>{1, 1, 0, 1, 6, 1}}) {
    Spec s = full_spec(GetParam());
    s.B = lengths.empty() ? 3 : 1;
    s.T = lengths.empty() ? 1 : 10;
    s.C = 288;
    s.lengths = lengths;
    on_every_target([&] {
      s.x = s.y = Layout::spread;
      s.threads = 1;
      Problem buffered(s);
      buffered.forward();
      s.x = s.y = Layout::btc;
      for (const int threads : {1, 2, 3}) {
        s.threads = threads;
        Problem p(s);
        p.y.poison();
        short_convolution_forward({p.y.view(), p.state.view()}, p.inputs(), p.options());
        EXPECT_TRUE(p.y.bits() == buffered.y.bits()) << describe(s);
        EXPECT_TRUE(p.state.bits() == buffered.new_state.bits()) << describe(s);
        EXPECT_FALSE(p.y.spilled() || p.state.spilled());
      }
    });
  }
}

TEST(ShortConvolution, PackedBatch_EachSequence_HasTheBitsOfACallByItself) {
  Spec s = full_spec(DType::bf16);
  s.lengths = {3, 0, 70, 1, 40, 0};
  s.T = 114;
  s.state = s.new_state = DType::f32;
  Problem p(s);
  p.forward();
  const auto y = p.y.bits(), states = p.new_state.bits();
  p.y.poison();
  for (std::size_t n = 0; n < s.lengths.size(); ++n) {
    const auto state_of = [n](auto view) {
      view.data = static_cast<float*>(const_cast<void*>(static_cast<const void*>(view.data))) +
                  static_cast<std::int64_t>(n) * view.strides[0];
      view.shape[0] = 1;
      return view;
    };
    const auto rows_of = [&p, n](auto view) {
      view.data = static_cast<BFloat16*>(const_cast<void*>(static_cast<const void*>(view.data))) +
                  p.bounds[n] * view.strides[2];
      view.shape[2] = p.spec.lengths[n];
      return view;
    };
    const ShortConvolutionInputs in{rows_of(p.x.view()), p.weight.view(), p.bias.view(), state_of(p.state.view()), {}};
    short_convolution_forward({rows_of(p.y.view()), state_of(p.new_state.view())}, in);
  }
  EXPECT_TRUE(p.y.bits() == y);
  EXPECT_TRUE(p.new_state.bits() == states);
}

TEST_P(ShortConvolution, NoTokens_StateAndGradients_PassThrough) {
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>(), std::vector<std::int64_t>{0, 0, 0}}) {
    Spec s = full_spec(GetParam());
    s.T = 0;
    s.lengths = lengths;
    Problem p(s);
    p.forward();
    EXPECT_TRUE(p.new_state.bits() == p.state.bits());
    p.backward();
    EXPECT_TRUE(p.dstate.bits() == p.new_dstate.bits());
    for (const PlacedTensor* sums : {&p.dweight, &p.dbias}) {
      EXPECT_TRUE(sums->bits() == std::vector<std::uint8_t>(sums->bits().size(), 0));
      EXPECT_FALSE(sums->spilled());
    }
  }
  Spec s = full_spec(GetParam());
  s.C = 0;
  Problem empty(s);
  empty.forward();
  empty.backward();
}

TEST(ShortConvolution, AbsentGradients_AreNotNeeded) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Layout layout : {Layout::btc, Layout::bct}) {
      Spec s = full_spec(dtype);
      s.x = s.y = layout;
      s.T = 100;
      s.C = 70;
      Problem all(s), some(s);
      all.backward();
      const ShortConvolutionIncoming incoming{some.dy.view(), some.new_dstate.view()};
      const auto expect_same = [&](const ShortConvolutionGradients& wanted, PlacedTensor Problem::*gradient) {
        (some.*gradient).poison();
        short_convolution_backward(wanted, some.inputs(), incoming, some.options());
        EXPECT_TRUE((some.*gradient).bits() == (all.*gradient).bits()) << describe(s);
      };
      expect_same({some.dx.view(), {}, {}, {}}, &Problem::dx);
      expect_same({{}, some.dweight.view(), {}, {}}, &Problem::dweight);
      expect_same({{}, {}, some.dbias.view(), {}}, &Problem::dbias);
      expect_same({{}, {}, {}, some.dstate.view()}, &Problem::dstate);
    }
  }
}

TEST(ShortConvolution, CancelledCall_AnyTask_Throws) {
  Spec s = full_spec(DType::f32);
  s.T = 600;
  s.C = 200;
  Problem p(s);
  for (const int threads : {1, 2}) {
    for (const std::int64_t patience : {0, 1, 3}) {
      std::int64_t asked = 0;
      const std::function<bool()> cancelled = [&] { return ++asked > patience; };
      ShortConvolutionOptions options = p.options();
      options.context = {.threads = threads, .cancelled = &cancelled};
      bool thrown = false;
      try {
        short_convolution_forward({p.y.view(), p.new_state.view()}, p.inputs(), options);
      } catch (const Cancelled&) {
        thrown = true;
      }
      EXPECT_EQ(thrown, asked > patience);
      EXPECT_TRUE(thrown || threads > 1);
      asked = 0;
      thrown = false;
      try {
        short_convolution_backward({p.dx.view(), p.dweight.view(), {}, {}}, p.inputs(), {p.dy.view(), {}}, options);
      } catch (const Cancelled&) {
        thrown = true;
      }
      EXPECT_EQ(thrown, asked > patience);
      EXPECT_TRUE(thrown || threads > 1);
    }
  }
}

/// A valid call whose arguments a test spoils.
struct Arguments {
  Problem p{[] {
    Spec s = full_spec(DType::bf16);
    s.lengths = {3, 5};
    s.T = 8;
    s.C = 2;
    return s;
  }()};
  ShortConvolutionOutputs outputs{p.y.view(), p.new_state.view()};
  ShortConvolutionInputs inputs = p.inputs();
  ShortConvolutionIncoming incoming{p.dy.view(), p.new_dstate.view()};
  ShortConvolutionGradients gradients{p.dx.view(), p.dweight.view(), p.dbias.view(), p.dstate.view()};
  ShortConvolutionOptions options;
  std::vector<std::int64_t> entries{1, 3, 2, 5};
  PlacedTensor snapshots;

  ConstTensorView lengths() const { return make_view(static_cast<const std::int64_t*>(entries.data()), {1, 1, 2, 2}); }
  void write_snapshots(DType dtype, std::int64_t rows) {
    snapshots = {dtype, {rows, 1, 3, 2}};
    inputs.snapshot_lengths = lengths();
    outputs.snapshots = snapshots.view();
  }

  void expect_forward_refused(const std::string& said) {
    const auto before = p.y.bits(), state = p.new_state.bits();
    expect_refused([this] { short_convolution_forward(outputs, inputs, options); },
                   "short_convolution_forward: " + said);
    EXPECT_TRUE(p.y.bits() == before && p.new_state.bits() == state) << said;
  }
  void expect_backward_refused(const std::string& said) {
    const auto before = p.dx.bits(), sums = p.dweight.bits();
    expect_refused([this] { short_convolution_backward(gradients, inputs, incoming, options); },
                   "short_convolution_backward: " + said);
    EXPECT_TRUE(p.dx.bits() == before && p.dweight.bits() == sums) << said;
  }
};

template <class Spoil>
void expect_forward_error(const Spoil& spoil, const std::string& said) {
  Arguments arguments;
  spoil(arguments);
  arguments.expect_forward_refused(said);
}

TEST(ShortConvolution, ForwardArguments_ThatDoNotFit_AreRefusedByName) {
  using A = Arguments;
  expect_forward_error([](A& a) { a.inputs.x = {}; }, "x is required but absent");
  expect_forward_error([](A& a) { a.inputs.x.dtype = DType::i32; }, "x has dtype i32 but must be f32 or f64 or bf16");
  expect_forward_error([](A& a) { a.inputs.x.shape[1] = 2; }, "x has shape (1,2,8,2) but (B,1,T,C) is (1,1,8,2)");
  expect_forward_error([](A& a) { a.inputs.weight = {}; }, "weight is required but absent");
  expect_forward_error([](A& a) { a.inputs.weight.dtype = DType::f16; },
                       "weight has dtype f16 but must be bf16 or f32");
  expect_forward_error([](A& a) { a.inputs.weight.shape[3] = 9; },
                       "weight has shape (1,1,2,9): K is 9 but must be 2 to 8");
  expect_forward_error([](A& a) { a.inputs.weight.shape[3] = 1; },
                       "weight has shape (1,1,2,1): K is 1 but must be 2 to 8");
  expect_forward_error([](A& a) { a.inputs.weight.shape[2] = 1; },
                       "weight has shape (1,1,1,4) but (1,1,C,K) is (1,1,2,4)");
  expect_forward_error([](A& a) { a.inputs.bias.shape[3] = 1; }, "bias has shape (1,1,1,1) but (1,1,1,C) is (1,1,1,2)");
  expect_forward_error([](A& a) { a.inputs.bias.dtype = DType::f64; }, "bias has dtype f64 but must be bf16 or f32");
  expect_forward_error([](A& a) { a.inputs.state.shape[2] = 4; },
                       "inputs.state has shape (2,1,4,2) but (N,1,K-1,C) is (2,1,3,2)");
  expect_forward_error([](A& a) { a.inputs.state.dtype = DType::f64; },
                       "inputs.state has dtype f64 but must be bf16 or f32");
  expect_forward_error([](A& a) { a.outputs.state.shape[0] = 1; },
                       "outputs.state has shape (1,1,3,2) but (N,1,K-1,C) is (2,1,3,2)");
  expect_forward_error([](A& a) { a.outputs.y = {}; }, "y is required but absent");
  expect_forward_error([](A& a) { a.outputs.y.dtype = DType::f16; }, "y has dtype f16 but must be bf16");
  expect_forward_error([](A& a) { a.outputs.y.shape[2] = 7; }, "y has shape (1,1,7,2) but (B,1,T,C) is (1,1,8,2)");
  expect_forward_error([](A& a) { a.outputs.y.strides[2] = 0; }, "y has shape (1,1,8,2) and strides");
  expect_forward_error([](A& a) { a.options.activation = GateFn::sigmoid; },
                       "activation is sigmoid but must be silu or none");
  expect_forward_error([](A& a) { a.options.context.threads = -1; }, "");
  expect_forward_error([](A& a) { a.p.bounds[0] = 1; }, "cu_seqlens[0] is 1 but must be 0");
  expect_forward_error([](A& a) { a.p.bounds[1] = 9; }, "cu_seqlens[1] is 9 but must be at most T = 8");
  expect_forward_error([](A& a) { a.p.bounds[2] = 2; }, "cu_seqlens[2] is 2 but cu_seqlens[1] is 3");
  expect_forward_error([](A& a) { a.p.bounds[2] = 7; }, "cu_seqlens[2] is 7 but must be T = 8");
  expect_forward_error([](A& a) { a.inputs.cu_seqlens.dtype = DType::f32; },
                       "cu_seqlens has dtype f32 but must be i32 or i64");
  expect_forward_error(
      [](A& a) {
        a.inputs.x.shape = a.outputs.y.shape = {2, 1, 4, 2};
        a.inputs.x.strides = a.outputs.y.strides = {8, 8, 2, 1};
      },
      "cu_seqlens is given but x has shape (2,1,4,2): B is 2 but must be 1");
  expect_forward_error([](A& a) { a.inputs.snapshot_lengths = a.lengths(); },
                       "snapshot_lengths is given but snapshots is absent: give both or neither");
  expect_forward_error([](A& a) { a.write_snapshots(DType::bf16, 3); },
                       "snapshots has shape (3,1,3,2) but (N*M,1,K-1,C) is (4,1,3,2)");
  expect_forward_error([](A& a) { a.write_snapshots(DType::f64, 4); },
                       "snapshots has dtype f64 but must be bf16 or f32");
  expect_forward_error(
      [](A& a) {
        a.write_snapshots(DType::bf16, 4);
        a.entries[3] = 6;
      },
      "snapshot_lengths[1,1] is 6 but must be 2 to 5: rows do not decrease, and sequence 1 has 5 tokens");
}

TEST(ShortConvolution, Outputs_ThatOverlap_AreRefused) {
  using A = Arguments;
  expect_forward_error([](A& a) { a.outputs.y.data = const_cast<void*>(a.inputs.x.data); }, "y overlaps x in memory");
  expect_forward_error(
      [](A& a) {
        a.outputs.state = a.p.state.view();
        std::swap(a.outputs.state.strides[2], a.outputs.state.strides[3]);
        a.outputs.state.strides[3] = 3;
        a.outputs.state.strides[2] = 1;
      },
      "outputs.state overlaps inputs.state in memory");
  Arguments in_place;
  in_place.outputs.state = in_place.p.state.view();
  in_place.inputs.bias = in_place.p.state.view();
  in_place.inputs.bias.shape = {1, 1, 1, 2};
  in_place.expect_forward_refused("outputs.state overlaps bias in memory");
}

template <class Spoil>
void expect_backward_error(const Spoil& spoil, const std::string& said) {
  Arguments arguments;
  spoil(arguments);
  arguments.expect_backward_refused(said);
}

TEST(ShortConvolution, BackwardArguments_ThatDoNotFit_AreRefusedByName) {
  using A = Arguments;
  expect_backward_error([](A& a) { a.incoming.dy = {}; }, "dy is required but absent");
  expect_backward_error([](A& a) { a.incoming.dy.dtype = DType::f32; }, "dy has dtype f32 but must be bf16");
  expect_backward_error([](A& a) { a.incoming.dy.shape[3] = 1; }, "dy has shape (1,1,8,1) but (B,1,T,C) is (1,1,8,2)");
  expect_backward_error([](A& a) { a.incoming.dstate.shape[2] = 2; },
                        "incoming.dstate has shape (2,1,2,2) but (N,1,K-1,C) is (2,1,3,2)");
  expect_backward_error([](A& a) { a.gradients.dx.shape[3] = 1; }, "dx has shape (1,1,8,1) but x has shape (1,1,8,2)");
  expect_backward_error([](A& a) { a.gradients.dweight.dtype = DType::f32; }, "dweight has dtype f32 but must be bf16");
  expect_backward_error([](A& a) { a.inputs.bias = {}; }, "dbias is asked for but bias is absent");
  expect_backward_error([](A& a) { a.inputs.state = {}; }, "gradients.dstate is asked for but inputs.state is absent");
  expect_backward_error([](A& a) { a.gradients.dstate = a.p.state.view(); },
                        "gradients.dstate overlaps inputs.state in memory");
  expect_backward_error([](A& a) { a.gradients.dx = a.p.dy.view(); }, "dx overlaps dy in memory");
  expect_backward_error([](A& a) { a.inputs.snapshot_lengths = a.lengths(); },
                        "snapshot_lengths is given, but only the forward pass writes snapshots: leave it out");
}

}  // namespace
}  // namespace headgate
