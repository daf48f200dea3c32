// SPDX-License-Identifier: Apache-2.0
#include "models/layers/delta_net.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "headgate/error.hpp"
#include "headgate/linear_attention_statistics.hpp"
#include "library/core/convert.hpp"
#include "models/layers/plain_delta_net.hpp"
#include "models/layers/support.hpp"

namespace headgate::layers {
namespace {

/// Heads that share keys, unequal D and Dv, two and four taps, β up to 2, one of everything, and more tokens than a
/// chunk of the backward pass.
std::vector<DeltaNetShape> shapes() {
  const auto rows = [](std::int64_t B, std::int64_t T) { return DeltaNetShape{.B = B, .T = T, .C = 5}; };
  DeltaNetShape shared = rows(2, 6), wide = rows(1, 9), doubled = rows(1, 5), one = rows(3, 1), longer = rows(1, 70);
  shared.Hk = 2, shared.Hv = 4, shared.D = 3, shared.Dv = 3;
  wide.Hk = 1, wide.Hv = 1, wide.D = 3, wide.Dv = 5, wide.K = 2, wide.output_gate = GateFn::sigmoid;
  doubled.Hk = 1, doubled.Hv = 3, doubled.D = 4, doubled.Dv = 2, doubled.beta_scale = 2.0, doubled.norm_eps = 1e-5;
  one.Hk = one.Hv = one.D = one.Dv = 1;
  longer.C = longer.D = longer.Dv = 3, longer.Hk = 1, longer.Hv = 2, longer.beta_scale = 2.0;
  return {shared, wide, doubled, one, longer};
}

std::array<std::int64_t, kDeltaNetTensors> counts(const DeltaNetShape& s) {
  const std::int64_t width = delta_net_columns(s).width;
  return {s.N() * s.C, width * s.C, s.channels() * s.K, s.Hv, s.Hv, s.Dv, s.C * s.Hv * s.Dv};
}

/// Values of a layer's input and weights.
struct Sample {
  DeltaNetShape shape;
  std::array<std::vector<double>, kDeltaNetTensors> values;

  Sample(Random& random, const DeltaNetShape& sizes) : shape(sizes) {
    for (std::size_t i = 0; i < kDeltaNetTensors; ++i) values[i] = random_values(random, counts(shape)[i], 0.7);
  }
  DeltaNetNumbers numbers() const {
    DeltaNetNumbers all;
    for (std::size_t i = 0; i < kDeltaNetTensors; ++i) all[i] = as<Number>(values[i]);
    return all;
  }
};

/// The tensors of a layer in T: its input and weights, or their gradients.
template <typename T>
struct Tensors {
  DeltaNetShape shape;
  std::array<std::vector<T>, kDeltaNetTensors> values;

  Tensors(const DeltaNetShape& sizes, const std::array<std::vector<double>, kDeltaNetTensors>& from) : shape(sizes) {
    for (std::size_t i = 0; i < kDeltaNetTensors; ++i) values[i] = as<T>(from[i]);
  }
  explicit Tensors(const Sample& sample) : Tensors(sample.shape, sample.values) {}

  View<T, 2> h() { return view_of(values[kInput], shape.N(), shape.C); }
  DeltaNetWeights<T> weights() {
    DeltaNetWeights<T> w;
    const std::int64_t Hv = shape.Hv, Dv = shape.Dv;
    w.convolution = view_of(values[kConvolution], shape.channels(), shape.K);
    w.a_log = view_of(values[kALog], Hv);
    w.dt_bias = view_of(values[kDtBias], Hv);
    w.norm = view_of(values[kNorm], Dv);
    w.in = view_of(values[kIn], delta_net_columns(shape).width, shape.C);
    w.out = view_of(values[kOut], shape.C, Hv * Dv);
    return w;
  }
};

template <typename T>
DeltaNetWeights<const T> read_only(const DeltaNetWeights<T>& w) {
  return {{w.convolution, w.a_log, w.dt_bias, w.norm}, w.in, w.out};
}

/// Buffers of one layer.
template <typename T>
struct Buffers {
  Buffers(Workspace& ws, const DeltaNetShape& shape) : state(ws, shape), shared(ws, shape, true) {}
  DeltaNetState<T> state;
  DeltaNetShared<T> shared;
};

/// A layer with its memory.
template <typename T>
struct Layer {
  Tensors<T> tensors;
  Placed<Buffers<T>, Block> buffers;
  DeltaNet<T> layer;

  Layer(const Sample& sample, const ExecutionContext& context)
      : tensors(sample), buffers(sample.shape), layer(sample.shape, buffers->shared, context) {}

  DeltaNetWeights<const T> weights() { return read_only(tensors.weights()); }
  std::vector<T> forward(DeltaNetCache* cache = nullptr, const HeadOverride<T>* replaced = nullptr) {
    std::vector<T> out(tensors.values[kInput].size());
    layer.forward(view_of(out, tensors.shape.N(), tensors.shape.C), tensors.h(), weights(), buffers->state,
                  Update::overwrite, cache, replaced);
    return out;
  }
};

template <typename T>
void check_forward(const Sample& s, const ExecutionContext& context) {
  Layer<T> layer(s, context);
  const std::vector<Number> expected = PlainDeltaNet(s.shape, s.numbers()).output();
  expect_within("out", layer.forward(), expected);
  const std::vector<double> base(expected.size(), 0.5);
  std::vector<T> out = as<T>(base);
  layer.layer.forward(view_of(out, s.shape.N(), s.shape.C), layer.tensors.h(), layer.weights(), layer.buffers->state,
                      Update::add);
  expect_within("out +=", out, added(base, expected));
}

template <typename T>
void check_backward(const Sample& s, Random& random, const ExecutionContext& context) {
  Tape tape;
  DeltaNetNumbers numbers;
  for (std::size_t i = 0; i < kDeltaNetTensors; ++i) numbers[i] = tape.inputs(s.values[i]);
  const std::vector<double> dout = random_values(random, s.shape.N() * s.shape.C);
  tape.differentiate(PlainDeltaNet(s.shape, numbers).output(), dout);

  Layer<T> layer(s, context);
  layer.forward();
  const Sample base(random, s.shape);
  Tensors<T> gradients(base);
  const std::vector<T> incoming = as<T>(dout);
  layer.layer.backward(gradients.h(), gradients.weights(), view_of(incoming, s.shape.N(), s.shape.C), layer.tensors.h(),
                       layer.weights(), layer.buffers->state);
  for (std::size_t i = 0; i < kDeltaNetTensors; ++i) {
    const std::vector<Number> expected = tape.gradients(numbers[i]);
    expect_within("gradient of tensor " + std::to_string(i), gradients.values[i],
                  i == kInput ? expected : added(base.values[i], expected));
  }
}

class DeltaNetLayer : public OnTarget {};

TEST_P(DeltaNetLayer, Forward_EveryShape_MatchesTheRecurrence) {
  Random random(31);
  for (const DeltaNetShape& shape : shapes()) {
    for (int round = 0; round < 3; ++round) {
      const Sample s(random, shape);
      check_forward<double>(s, on());
      check_forward<float>(s, on());
    }
  }
}

TEST_P(DeltaNetLayer, Gradients_EveryShape_MatchTheRecurrence) {
  Random random(32);
  for (const DeltaNetShape& shape : shapes()) {
    const Sample s(random, shape);
    check_backward<double>(s, random, on());
    check_backward<float>(s, random, on());
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, DeltaNetLayer, ::testing::ValuesIn(supported_targets()), target_label);

// --- passes with a cache -----------------------------------------------------------------------------------------

DeltaNetShape with_tokens(DeltaNetShape shape, std::int64_t T) {
  shape.T = T;
  return shape;
}

/// Returns tokens first … first + T − 1 of each sequence of `s`.
Sample piece(const Sample& s, std::int64_t first, std::int64_t T) {
  Sample part = s;
  part.shape.T = T;
  part.values[kInput].clear();
  for (std::int64_t b = 0; b < s.shape.B; ++b) {
    const auto from = s.values[kInput].begin() + (b * s.shape.T + first) * s.shape.C;
    part.values[kInput].insert(part.values[kInput].end(), from, from + T * s.shape.C);
  }
  return part;
}

/// Tokens of the passes that a text of 12 is split into.
const std::vector<std::int64_t> kPieces = {1, 4, 0, 2, 1, 1, 3};

/// Returns the output (B,12,C) of passes with a cache.
template <typename T>
std::vector<T> in_pieces(const Sample& s, DeltaNetCache& cache) {
  std::vector<T> out(s.values[kInput].size());
  std::int64_t first = 0;
  for (const std::int64_t tokens : kPieces) {
    const std::vector<T> part = Layer<T>(piece(s, first, tokens), with_threads()).forward(&cache);
    for (std::int64_t b = 0; b < s.shape.B; ++b) {
      std::copy_n(part.begin() + b * tokens * s.shape.C, tokens * s.shape.C,
                  out.begin() + (b * s.shape.T + first) * s.shape.C);
    }
    first += tokens;
    EXPECT_EQ(cache.length(), first);
  }
  return out;
}

template <typename T>
void check_pieces(const Sample& s) {
  DeltaNetCache cache(s.shape, dtype_of<T>());
  const std::vector<T> out = in_pieces<T>(s, cache);
  expect_within("pieces", out, PlainDeltaNet(s.shape, s.numbers()).output());
  cache.truncate(0);
  EXPECT_EQ(in_pieces<T>(s, cache), out) << "from an emptied cache";
}

TEST(DeltaNetWithCache, Pieces_OfAText_MatchOnePass) {
  Random random(33);
  for (const DeltaNetShape& shape : shapes()) {
    const Sample s(random, with_tokens(shape, 12));
    check_pieces<double>(s);
    check_pieces<float>(s);
  }
}

TEST(DeltaNetWithCache, Truncate_BeforeTheLastPass_UndoesIt) {
  Random random(34);
  const Sample s(random, with_tokens(shapes().front(), 12));
  DeltaNetCache cache(s.shape);
  Layer<float> first(piece(s, 0, 5), with_threads()), second(piece(s, 5, 3), with_threads());
  first.forward(&cache);
  const std::vector<float> expected = second.forward(&cache);
  EXPECT_EQ(cache.reachable(7), 5);
  cache.truncate(5);
  EXPECT_EQ(cache.length(), 5);
  EXPECT_EQ(second.forward(&cache), expected);
  cache.truncate(8);
  EXPECT_EQ(cache.length(), 8);
}

TEST(DeltaNetWithCache, Truncate_BeforeAnOlderPass_IsRefused) {
  Random random(35);
  const Sample s(random, with_tokens(shapes().front(), 12));
  DeltaNetCache cache(s.shape);
  for (const std::int64_t T : {5, 3, 2}) Layer<float>(piece(s, 0, T), with_threads()).forward(&cache);
  for (const std::int64_t length : {5, 9, 11, -1}) {
    EXPECT_NE(cache.reachable(length), length);
    EXPECT_THROW(cache.truncate(length), Error);
  }
  cache.truncate(8);
  EXPECT_EQ(cache.reachable(5), 0);
}

TEST(DeltaNetWithCache, Marks_OfOlderPasses_AreGoneBackTo) {
  Random random(38);
  const Sample s(random, with_tokens(shapes().front(), 12));
  const auto run = [&s](DeltaNetCache& cache, std::int64_t T) {
    return Layer<float>(piece(s, cache.length(), T), with_threads()).forward(&cache);
  };
  DeltaNetCache cache(s.shape);
  const std::size_t state = cache.bytes() / 2;
  std::vector<std::vector<float>> next;  // the output of the token after each mark
  for (const std::int64_t T : {3, 2, 4}) {
    run(cache, T);
    cache.mark(2);
    cache.mark(2);  // of the same length: no second one
    next.push_back(run(cache, 1));
  }
  EXPECT_EQ(cache.bytes(), 4 * state) << "two marks, the current state and the next";
  EXPECT_EQ(cache.reachable(5), 0) << "the first mark is gone";
  EXPECT_EQ(cache.reachable(10), 6);
  EXPECT_EQ(cache.reachable(12), 12);
  for (int again = 0; again < 2; ++again) {
    cache.truncate(11);
    EXPECT_EQ(run(cache, 1), next[2]) << "the third mark";
  }
  cache.truncate(6);
  EXPECT_EQ(run(cache, 1), next[1]);
  EXPECT_EQ(cache.reachable(11), 7) << "what followed the second mark is gone";
  EXPECT_EQ(cache.bytes(), 4 * state);
}

TEST(DeltaNetWithCache, KeptTokens_OfAnyPasses_AreGoneBackTo) {
  constexpr std::int64_t kKeep = 4;
  Random random(39);
  for (const DeltaNetShape& shape : shapes()) {
    const Sample s(random, with_tokens(shape, 12));
    for (const std::vector<std::int64_t>& passes : {std::vector<std::int64_t>{3, 6}, {5, 4}, {6, 2, 1}, {9}}) {
      for (std::int64_t length = 9 - kKeep; length <= 9; ++length) {
        Sample refused = s;  // other tokens from `length` on
        for (std::size_t n = 0; n < refused.values[kInput].size(); ++n) {
          const auto token = static_cast<std::int64_t>(n) / shape.C % 12;
          if (token >= length) refused.values[kInput][n] *= -0.5;
        }
        DeltaNetCache cache(s.shape, DType::f32, kKeep), other(s.shape, DType::f32, kKeep), plain(s.shape);
        EXPECT_EQ(cache.bytes(), (kKeep + 3) * plain.bytes() / 2);
        for (const std::int64_t T : passes) {
          Layer<float>(piece(s, cache.length(), T), with_threads()).forward(&cache);
          Layer<float>(piece(refused, other.length(), T), with_threads()).forward(&other);
        }
        EXPECT_EQ(cache.reachable(length), length);
        cache.truncate(length);
        other.truncate(length);
        EXPECT_EQ(cache.length(), length);
        Layer<float>(piece(s, 0, length), with_threads()).forward(&plain);
        const Sample next = piece(s, length, 3);
        const std::vector<float> found = Layer<float>(next, with_threads()).forward(&cache);
        EXPECT_EQ(Layer<float>(next, with_threads()).forward(&other), found) << "refused tokens leave no trace";
        const std::vector<float> expected = Layer<float>(next, with_threads()).forward(&plain);
        for (std::size_t n = 0; n < found.size(); ++n)
          EXPECT_NEAR(found[n], expected[n], 1e-4F * (1.0F + std::abs(expected[n])));
      }
    }
  }
}

TEST(DeltaNetWithCache, TokensBeforeTheKeptOnes_AreOutOfReach) {
  Random random(40);
  const Sample s(random, with_tokens(shapes().front(), 12));
  DeltaNetCache cache(s.shape, DType::f32, 2);
  for (const std::int64_t T : {4, 5}) Layer<float>(piece(s, cache.length(), T), with_threads()).forward(&cache);
  EXPECT_EQ(cache.reachable(8), 8);
  EXPECT_EQ(cache.reachable(7), 7);
  EXPECT_EQ(cache.reachable(6), 4) << "the beginning of the last pass";
  EXPECT_EQ(cache.reachable(3), 0);
  for (const std::int64_t token : {9, 10}) Layer<float>(piece(s, token, 1), with_threads()).forward(&cache);
  EXPECT_EQ(cache.reachable(9), 9);
  EXPECT_EQ(cache.reachable(7), 0);
  EXPECT_THROW(cache.truncate(7), Error);
  EXPECT_THROW(DeltaNetCache(s.shape, DType::f32, -1), Error);
}

TEST(DeltaNetWithCache, PassCancelledAnywhere_IsUndone) {
  for (const std::int64_t keep : {0, 2}) {
    Random random(36);
    const Sample s(random, with_tokens(shapes().front(), 12));
    DeltaNetCache cache(s.shape, DType::f32, keep), undisturbed(s.shape, DType::f32, keep);
    Layer<float>(piece(s, 0, 5), with_threads()).forward(&cache);
    Layer<float>(piece(s, 0, 5), with_threads()).forward(&undisturbed);
    const std::vector<float> expected = Layer<float>(piece(s, 5, 3), with_threads()).forward(&undisturbed);
    int failures = 0;
    for (bool failed = true; failed && failures < 1000;) {
      int left = failures;
      const std::function<bool()> cancelled = [&left] { return left-- == 0; };
      ExecutionContext context = with_threads(1);
      context.cancelled = &cancelled;
      Layer<float> layer(piece(s, 5, 3), context);
      try {
        EXPECT_EQ(layer.forward(&cache), expected);
        failed = false;
      } catch (const Cancelled&) {
        ++failures;
        cache.truncate(5);
      }
    }
    EXPECT_GE(failures, 2) << "both products check";
    EXPECT_EQ(cache.length(), 8);
  }
}

TEST(DeltaNetWithCache, ZeroTokens_ChangeNothing) {
  Random random(37);
  const Sample s(random, with_tokens(shapes().front(), 12));
  DeltaNetCache cache(s.shape);
  Layer<float>(piece(s, 0, 5), with_threads()).forward(&cache);
  Layer<float> none(piece(s, 0, 0), with_threads());
  EXPECT_TRUE(none.forward(&cache).empty());
  EXPECT_EQ(cache.length(), 5);
  Sample base = piece(s, 0, 0);
  Tensors<float> gradients(base);
  none.layer.backward(gradients.h(), gradients.weights(), View<const float, 2>(nullptr, {0, s.shape.C}),
                      none.tensors.h(), none.weights(), none.buffers->state);
  EXPECT_EQ(gradients.values[kIn], as<float>(base.values[kIn]));
}

TEST(DeltaNetWithCache, Bytes_OfTwoStates_DoNotGrow) {
  DeltaNetShape shape = shapes().front();
  shape.D = shape.Dv = 16;
  DeltaNetCache cache(shape);
  const std::int64_t numbers = shape.B * (shape.Hv * 16 * 16 + 3 * shape.channels());
  EXPECT_EQ(cache.step_bytes(), static_cast<std::size_t>(numbers) * sizeof(float));
  EXPECT_EQ(cache.bytes(), 2 * cache.step_bytes());
  cache.begin_pass();
  cache.begin_part();
  cache.commit(1000);
  EXPECT_EQ(cache.bytes(), 2 * cache.step_bytes());
  EXPECT_THROW(DeltaNetCache(shape, DType::bf16), Error);
}

TEST(DeltaNetShapeOf, ImpossibleSizes_AreRefused) {
  const DeltaNetShape good = shapes().front();
  EXPECT_NO_THROW(validate(good));
  for (const auto& spoil : std::vector<void (*)(DeltaNetShape&)>{
           [](DeltaNetShape& s) { s.T = -1; }, [](DeltaNetShape& s) { s.C = 0; }, [](DeltaNetShape& s) { s.Hk = 3; },
           [](DeltaNetShape& s) { s.Hk = 0; }, [](DeltaNetShape& s) { s.D = 257; }, [](DeltaNetShape& s) { s.Dv = 0; },
           [](DeltaNetShape& s) { s.K = 1; }, [](DeltaNetShape& s) { s.norm_eps = -1.0; },
           [](DeltaNetShape& s) { s.beta_scale = 0.0; }, [](DeltaNetShape& s) { s.output_gate = GateFn::none; }}) {
    DeltaNetShape shape = good;
    spoil(shape);
    EXPECT_THROW(validate(shape), Error);
  }
}

// --- threads, storage, overrides, statistics ---------------------------------------------------------------------

/// Products of matrices may sum in another order on more threads, as oneDNN's do with AVX2.
TEST(DeltaNetPass, TwoThreads_LargerLayer_AgreeWithinRounding) {
  Random random(38);
  DeltaNetShape shape{.B = 2, .T = 80, .C = 96, .Hk = 2, .Hv = 4, .D = 32, .Dv = 48};
  const Sample s(random, shape);
  const std::vector<float> dout = as<float>(random_values(random, shape.N() * shape.C));
  const auto pass = [&](int threads) {
    Layer<float> layer(s, with_threads(threads));
    std::vector<std::vector<float>> all = {layer.forward()};
    Tensors<float> gradients(s);
    layer.layer.backward(gradients.h(), gradients.weights(), view_of(dout, shape.N(), shape.C), layer.tensors.h(),
                         layer.weights(), layer.buffers->state);
    all.insert(all.end(), gradients.values.begin(), gradients.values.end());
    return all;
  };
  const std::vector<std::vector<float>> one = pass(1), two = pass(2);
  ASSERT_EQ(one.size(), two.size());
  for (std::size_t n = 0; n < one.size(); ++n) {
    ASSERT_EQ(one[n].size(), two[n].size());
    float largest = 0.0F;
    for (const float value : one[n]) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < one[n].size(); ++i) {
      EXPECT_NEAR(one[n][i], two[n][i], 1e-5F * largest) << "tensor " << n;
    }
  }
}

TEST(DeltaNetPass, MatricesInBf16_AreThoseOfTheirRoundedValues) {
  Random random(39);
  Sample s(random, shapes().front());
  std::array<std::vector<BFloat16>, kDeltaNetTensors> narrow;
  for (const DeltaNetTensor tensor : {kIn, kOut}) {
    for (double& value : s.values[tensor]) {
      narrow[tensor].push_back(to_bf16(static_cast<float>(value)));
      value = std::bit_cast<float>(std::uint32_t{narrow[tensor].back().bits} << 16U);
    }
  }
  Layer<float> layer(s, with_threads());
  DeltaNetWeights<const float, const BFloat16> w;
  static_cast<DeltaNetVectors<const float>&>(w) = layer.weights();
  w.in = View<const BFloat16, 2>(narrow[kIn].data(), layer.weights().in.shape);
  w.out = View<const BFloat16, 2>(narrow[kOut].data(), layer.weights().out.shape);
  std::vector<float> out(s.values[kInput].size());
  layer.layer.forward(view_of(out, s.shape.N(), s.shape.C), layer.tensors.h(), w, layer.buffers->state,
                      Update::overwrite);
  expect_within("out", out, PlainDeltaNet(s.shape, s.numbers()).output());
}

TEST(DeltaNetPass, OverrideWithoutFactors_WritesZeros) {
  Random random(40);
  Layer<double> layer(Sample(random, shapes().front()), with_threads());
  const DeltaNetState<double>& state = layer.buffers->state;
  layer.forward();
  const std::vector<double> y(state.y.data, state.y.data + state.y.count());
  HeadOverride<double> replaced;
  replaced.first = 1;
  replaced.count = 2;
  layer.forward(nullptr, &replaced);
  const auto [N, Hv, Dv] = state.y.shape;
  for (std::int64_t i = 0; i < state.y.count(); ++i) {
    const std::int64_t head = i / Dv % Hv;
    EXPECT_EQ(state.y.data[i], head == 1 || head == 2 ? 0.0 : y[static_cast<std::size_t>(i)]);
  }
}

TEST(DeltaNetPass, OverrideWithFactors_MultipliesTheNormedOutput) {
  Random random(41);
  Layer<double> layer(Sample(random, shapes().front()), with_threads());
  const DeltaNetState<double>& state = layer.buffers->state;
  layer.forward();
  const std::vector<double> y(state.y.data, state.y.data + state.y.count());
  const auto [N, Hv, Dv] = state.y.shape;
  const std::vector<double> factors = random_values(random, 2 * Dv);
  std::vector<double> ungated(y.size());
  const HeadOverride<double> replaced{2, 2, view_of(factors, 2, Dv), view_of(ungated, N, Hv, Dv)};
  layer.forward(nullptr, &replaced);
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t i = 0; i < Hv * Dv; ++i) {
      const std::int64_t head = i / Dv, e = i % Dv;
      const double before = y[static_cast<std::size_t>(n * Hv * Dv + i)], z = state.z(n, head, e);
      const double normed = before * (1.0 + std::exp(-z)) / z;
      const double expected = head < 2 ? before : normed * factors[static_cast<std::size_t>((head - 2) * Dv + e)];
      EXPECT_NEAR(state.y(n, head, e), expected, 1e-12 * (1.0 + std::abs(expected)));
    }
  }
}

TEST(DeltaNetPass, WeightsOfRuleInputs_TimesValues_AreTheRulesOutput) {
  Random random(42);
  Layer<double> layer(Sample(random, shapes().front()), with_threads());
  const DeltaNetState<double>& state = layer.buffers->state;
  layer.forward();
  const DeltaNetShape& s = layer.tensors.shape;
  std::vector<std::int64_t> queries;
  for (std::int64_t t = 0; t < s.T; ++t) queries.push_back(t);
  std::vector<double> weights(static_cast<std::size_t>(s.B * s.Hv * s.T * s.T));
  LinearAttentionWeights outputs;
  outputs.weights = make_view(weights.data(), Shape{s.B, s.Hv, s.T, s.T});
  linear_attention_weights(outputs, layer.layer.rule_inputs(state), make_vector_view(queries.data(), s.T),
                           layer.layer.rule_options());
  for (std::int64_t n = 0; n < s.N(); ++n) {
    for (std::int64_t head = 0; head < s.Hv; ++head) {
      const std::int64_t b = n / s.T, t = n % s.T;
      for (std::int64_t e = 0; e < s.Dv; ++e) {
        double sum = 0.0;
        for (std::int64_t j = 0; j <= t; ++j) {
          sum += weights[static_cast<std::size_t>(((b * s.Hv + head) * s.T + t) * s.T + j)] *
                 state.v(b * s.T + j, head, e);
        }
        EXPECT_NEAR(state.o(n, head, e), sum, 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace headgate::layers
