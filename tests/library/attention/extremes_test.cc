// SPDX-License-Identifier: Apache-2.0
// Tests numbers and sizes at the limits of their ranges, forward and backward, on every vector target.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "library/attention/property.hpp"
#include "library/core/convert.hpp"
#include "library/core/element.hpp"
#include "verify/oracle/dropout.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;
using verify::check_backward_case;
using verify::check_forward_case;
using verify::Values;

TEST(Extremes, LogitsAndGates_InTheThousands_MatchTheOracle) {
  for (const DType dtype : kDTypes) {
    for (int fn = 0; fn < 7; ++fn) {
      for (const GateOp op : {GateOp::mul, GateOp::add}) {
        CaseSpec spec = sized(20, 37, 16, 16);
        spec.Hkv = 2;
        spec.dtype = dtype;
        spec.values = Values::extreme;
        spec.gate_fn = static_cast<GateFn>(fn);
        spec.gate_op = op;
        spec.gate_f32 = fn % 2 == 0;
        spec.bias = {true, false, true, true};
        spec.sinks = DType::f32;
        spec.attn = true;
        spec.seed = 100 + static_cast<std::uint64_t>(fn);
        expect_both(spec);
        spec.softcap = 20.0;
        expect_both(spec);
      }
    }
  }
}

TEST(Extremes, Inputs_Denormals_MatchTheOracle) {
  for (const DType dtype : kDTypes) {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      CaseSpec spec = sized(19, 23, 12, 12);
      spec.dtype = dtype;
      spec.values = Values::denormal;
      spec.seed = seed;
      expect_both(spec);
    }
  }
}

/// Returns y (8 heads, one query, 40 keys of D = 32) as f32: every q is 2¹²⁶, key j is j · 2⁻¹³³, a denormal bf16, and
/// its value j / 40.
template <typename T, class Convert>
std::vector<float> outputs_of_denormal_keys(const Convert& convert) {
  constexpr std::int64_t kHeads = 8, kKeys = 40, kDim = 32;
  std::vector<T> q(kHeads * kDim, convert(0x1p126F)), k(kKeys * kDim), v(kKeys), y(kHeads);
  for (std::int64_t j = 0; j < kKeys; ++j) {
    std::fill_n(k.begin() + j * kDim, kDim, convert(static_cast<float>(j) * 0x1p-133F));
    v[j] = convert(static_cast<float>(j) / kKeys);
  }
  AttentionInputs in;
  in.q = make_view(q.data(), Shape{1, kHeads, 1, kDim});
  in.k = make_view(k.data(), Shape{1, 1, kKeys, kDim});
  in.v = make_view(v.data(), Shape{1, 1, kKeys, 1});
  AttentionOutputs out;
  out.y = make_view(y.data(), Shape{1, kHeads, 1, 1});
  attention_forward(out, in);
  std::vector<float> widened;
  for (const T& x : y) {
    if constexpr (std::is_same_v<T, float>) {
      widened.push_back(x);
    } else {
      widened.push_back(to_f32(x));
    }
  }
  return widened;
}

TEST(Extremes, DenormalKeys_HugeQueries_AreNotFlushed) {
  const TargetGuard guard;
  for (const std::string& target : supported_targets()) {
    set_target(target);
    const auto exact = outputs_of_denormal_keys<float>([](float x) { return x; });
    const auto rounded = outputs_of_denormal_keys<BFloat16>([](float x) { return to_bf16(x); });
    EXPECT_GT(exact[0], 0.6F) << target;  // 0.49, the mean, if the keys were flushed to zero
    for (std::size_t h = 0; h < exact.size(); ++h) EXPECT_NEAR(rounded[h], exact[h], 0.01F) << target;
  }
}

/// Returns y of queries of 32 elements each and keys of −20 … 20 units with values j, in int8 with scales or in f32.
std::vector<float> outputs_of_counting_keys(std::vector<float> q, float unit, bool quantized) {
  constexpr std::int64_t kKeys = 41, kDim = 32;
  const auto heads = static_cast<std::int64_t>(q.size()) / kDim;
  std::vector<float> k(kKeys * kDim), v(kKeys), y(heads), k_scale(kKeys, unit), v_scale(kKeys, 1.0F);
  std::vector<std::int8_t> k_bytes(k.size()), v_bytes(v.size());
  for (std::int64_t j = 0; j < kKeys; ++j) {
    std::fill_n(k_bytes.begin() + j * kDim, kDim, static_cast<std::int8_t>(j - 20));
    std::fill_n(k.begin() + j * kDim, kDim, static_cast<float>(j - 20) * unit);
    v[j] = v_bytes[j] = static_cast<std::int8_t>(j);
  }
  AttentionInputs in;
  in.q = make_view(q.data(), Shape{1, heads, 1, kDim});
  if (quantized) {
    in.k = make_view(k_bytes.data(), Shape{1, 1, kKeys, kDim});
    in.v = make_view(v_bytes.data(), Shape{1, 1, kKeys, 1});
    in.k_scale = make_view(k_scale.data(), Shape{1, 1, kKeys, 1});
    in.v_scale = make_view(v_scale.data(), Shape{1, 1, kKeys, 1});
  } else {
    in.k = make_view(k.data(), Shape{1, 1, kKeys, kDim});
    in.v = make_view(v.data(), Shape{1, 1, kKeys, 1});
  }
  AttentionOutputs out;
  out.y = make_view(y.data(), Shape{1, heads, 1, 1});
  attention_forward(out, in);
  return y;
}

TEST(Extremes, Int8Keys_QueriesOfAnySize_MatchTheOracle) {
  constexpr std::int64_t kDim = 32;
  const TargetGuard guard;
  for (const std::string& target : supported_targets()) {
    set_target(target);
    for (const std::int64_t heads : {1, 4, 8}) {
      for (const float size : {0x1p-100F, 1.0F, 0x1p100F}) {
        std::vector<float> q(heads * kDim);
        for (std::int64_t h = 0; h < heads; ++h) std::fill_n(q.begin() + h * kDim, kDim, h % 2 == 0 ? size : -size);
        const float unit = 0x1p-10F / size;
        const auto exact = outputs_of_counting_keys(q, unit, false),
                   quantized = outputs_of_counting_keys(q, unit, true);
        EXPECT_GT(exact[0], 20.5F) << target;  // 20, the mean, if the keys were lost
        for (std::size_t h = 0; h < exact.size(); ++h)
          EXPECT_NEAR(quantized[h], exact[h], 1e-3F) << target << ' ' << heads << ' ' << size;
      }
    }
  }
}

TEST(Extremes, Int8Keys_QueriesOfZerosOrNaN_MatchTheOracle) {
  constexpr std::int64_t kDim = 32, kHeads = 4;
  const TargetGuard guard;
  for (const std::string& target : supported_targets()) {
    set_target(target);
    std::vector<float> q(kHeads * kDim, 0.0F);
    for (const float y : outputs_of_counting_keys(q, 1.0F, true)) EXPECT_FLOAT_EQ(y, 20.0F) << target;
    q[kDim + 5] = std::numeric_limits<float>::quiet_NaN();
    const auto y = outputs_of_counting_keys(q, 1.0F, true);
    EXPECT_FLOAT_EQ(y[0], 20.0F) << target;
    EXPECT_TRUE(std::isnan(y[1])) << target;
    EXPECT_FLOAT_EQ(y[3], 20.0F) << target;
  }
}

/// −∞ in the bias hides the key, including whole rows and whole keys.
TEST(Extremes, Bias_MinusInfinity_HidesTheKey) {
  for (const DType dtype : kDTypes) {
    for (const bool bias_f32 : {false, true}) {
      for (const DType sinks : {DType::none, DType::f32}) {
        CaseSpec spec = sized(70, sinks == DType::none ? 600 : 300, 16, 16);
        spec.dtype = dtype;
        spec.bias = {true, true, true, true};
        spec.bias_f32 = bias_f32;
        spec.bias_hides = true;
        spec.sinks = sinks;
        spec.dlse = DType::f32;
        expect_both(spec);
      }
    }
  }
}

/// The lowest number in the bias hides no key, nor does the sum of two: a row that has nothing else weighs all of them
/// equally. Beside it, a key with 0 takes all. Gradients are finite.
template <typename T>
void expect_lowest_bias_is_a_number(std::int64_t rows, std::int64_t S, bool twice, std::int64_t target) {
  constexpr std::int64_t kD = 16;
  const auto n = static_cast<std::size_t>(rows), s = static_cast<std::size_t>(S);
  std::vector<T> q(n * kD, T{0.5}), k(s * kD, T{0.25}), v(s * kD), bias(n * s, std::numeric_limits<T>::lowest());
  for (std::size_t j = 0; j < s; ++j)
    std::fill_n(v.begin() + static_cast<std::ptrdiff_t>(j * kD), kD, static_cast<T>(j));
  bias[s + 3] = 0;  // query 1 sees key 3
  std::vector<T> y(n * kD);
  std::vector<double> lse(n);
  AttentionInputs in;
  in.q = make_view<const T>(q.data(), Shape{1, 1, rows, kD});
  in.k = make_view<const T>(k.data(), Shape{1, 1, S, kD});
  in.v = make_view<const T>(v.data(), Shape{1, 1, S, kD});
  in.bias = make_view<const T>(bias.data(), Shape{1, 1, rows, S});
  std::vector<T> key_bias(s, std::numeric_limits<T>::lowest());
  key_bias[3] = 0;
  if (twice) in.key_bias = make_view<const T>(key_bias.data(), Shape{1, 1, 1, S});
  AttentionOutputs out;
  out.y = make_view(y.data(), Shape{1, 1, rows, kD});
  out.lse = make_view(lse.data(), Shape{1, 1, rows, 1});
  AttentionOptions options;
  options.context.target = target;
  attention_forward(out, in, options);
  std::vector<T> dy(n * kD, T{1}), dq(n * kD), dk(s * kD), dv(s * kD);
  AttentionIncoming incoming;
  incoming.dy = make_view<const T>(dy.data(), out.y.shape);
  AttentionGradients gradients;
  gradients.dq = make_view(dq.data(), in.q.shape);
  gradients.dk = make_view(dk.data(), in.k.shape);
  gradients.dv = make_view(dv.data(), in.v.shape);
  attention_backward(gradients, in, {out.y, out.lse, {}}, incoming, options);
  for (const auto* each : {&dq, &dk, &dv}) {
    EXPECT_TRUE(std::all_of(each->begin(), each->end(), [](T x) { return std::isfinite(x); })) << rows << ", " << S;
  }
  const double mean = static_cast<double>(S - 1) / 2;  // twice the lowest number counts as once
  for (std::int64_t i = 0; i < rows; ++i) {
    const double expected = i == 1 ? 3.0 : mean;
    EXPECT_NEAR(y[static_cast<std::size_t>(i * kD)], expected, 1e-5 * mean) << "query " << i << " of " << rows;
    EXPECT_TRUE(std::isfinite(lse[static_cast<std::size_t>(i)])) << "query " << i << " of " << rows;
  }
}

TEST(Extremes, Bias_LowestNumber_HidesNoKey) {
  for (const std::string& target : supported_targets()) {
    SCOPED_TRACE(target);
    for (const std::int64_t rows : {2, 8, 70}) {
      for (const std::int64_t S : {5, 40, 300, 600}) {
        for (const bool twice : {false, true}) {
          expect_lowest_bias_is_a_number<float>(rows, S, twice, find_target(target));
          expect_lowest_bias_is_a_number<double>(rows, S, twice, find_target(target));
        }
      }
    }
  }
}

/// Each of S keys has a bias of −10⁹, so that every score rounds to the same number and P = 1/S, in the backward pass
/// and in statistics too.
void expect_equal_weights(std::int64_t T, std::int64_t S, bool by_key, std::int64_t target) {
  constexpr std::int64_t kD = 16;
  const Shape q_shape{1, 1, T, kD}, k_shape{1, 1, S, kD}, row_shape{1, 1, T, 1};
  const auto count = [](const Shape& shape) { return static_cast<std::size_t>(shape[2] * shape[3]); };
  std::vector<float> q(count(q_shape)), y(q.size()), dy(q.size(), 1.0F), k(count(k_shape)), dv(k.size()), dk(k.size());
  for (std::size_t n = 0; n < q.size(); ++n) q[n] = static_cast<float>(std::sin(static_cast<double>(n)));
  for (std::size_t n = 0; n < k.size(); ++n) k[n] = static_cast<float>(std::cos(static_cast<double>(n)));
  const std::vector<float> bias(static_cast<std::size_t>(S), -1e9F);
  std::vector<double> lse(static_cast<std::size_t>(T)), row_max(lse.size()), entropy(lse.size()), first(lse.size());
  AttentionInputs in;
  in.q = make_view<const float>(q.data(), q_shape);
  in.k = in.v = make_view<const float>(k.data(), k_shape);
  (by_key ? in.key_bias : in.bias) = {bias.data(), DType::f32, {1, 1, by_key ? 1 : T, S}, {0, 0, 0, 1}};
  AttentionOptions options;
  options.context.target = target;
  const TensorView y_view = make_view(y.data(), q_shape), lse_view = make_view(lse.data(), row_shape);
  attention_forward({.y = y_view, .lse = lse_view}, in, options);
  AttentionIncoming incoming;
  incoming.dy = make_view<const float>(dy.data(), q_shape);
  AttentionGradients gradients;
  gradients.dk = make_view(dk.data(), k_shape);
  gradients.dv = make_view(dv.data(), k_shape);
  attention_backward(gradients, in, {y_view, lse_view, {}}, incoming, options);
  AttentionStatistics statistics;
  statistics.row_max = make_view(row_max.data(), row_shape);
  statistics.entropy = make_view(entropy.data(), row_shape);
  statistics.first = make_view(first.data(), row_shape);
  attention_statistics(statistics, in, lse_view, {}, options);
  const double weight = 1.0 / static_cast<double>(S), in_total = static_cast<double>(T) * weight;
  for (const float x : dv) ASSERT_NEAR(x, in_total, 1e-5 * in_total) << T << ", " << S;
  for (std::size_t i = 0; i < lse.size(); ++i) {
    ASSERT_NEAR(row_max[i], weight, 1e-5 * weight) << T << ", " << S << ", query " << i;
    ASSERT_NEAR(first[i], weight, 1e-5 * weight) << T << ", " << S << ", query " << i;
    ASSERT_NEAR(entropy[i], std::log(static_cast<double>(S)), 1e-4) << T << ", " << S << ", query " << i;
  }
}

TEST(Extremes, BiasOfMinusABillion_OnEveryKey_WeighsKeysEqually) {
  for (const std::string& target : supported_targets()) {
    SCOPED_TRACE(target);
    for (const std::int64_t T : {3, 70, 300}) {
      for (const std::int64_t S : {5, 300, 600}) {
        for (const bool by_key : {false, true}) expect_equal_weights(T, S, by_key, find_target(target));
      }
    }
  }
}

/// Beside a key bias of −10⁹, biases of another size round scores to multiples of 64. The kernels of both passes must
/// round them alike: the weights of each query still sum to 1, whichever kernels run, and gradients are finite.
TEST(Extremes, BiasBesideMinusABillion_ForwardAndBackwardKernels_RoundAlike) {
  constexpr std::int64_t kHeads = 3, kD = 4;
  for (const std::string& target : supported_targets()) {
    for (const std::int64_t T : {16, 70, 200}) {
      for (const bool with_dbias : {false, true}) {
        const Shape shape{2, kHeads, T, kD}, map{2, kHeads, T, T}, column{2, kHeads, T, 1};
        const auto count = [](const Shape& s) { return static_cast<std::size_t>(s[0] * s[1] * s[2] * s[3]); };
        std::vector<float> x(count(shape)), ones(x.size(), 1.0F), y(x.size()), dq(x.size()), dk(x.size()), dv(x.size());
        std::vector<float> bias(count(map)), dbias(bias.size()), key_bias(static_cast<std::size_t>(2 * T), -1e9F);
        for (std::size_t n = 0; n < x.size(); ++n) x[n] = static_cast<float>(std::sin(static_cast<double>(n)));
        for (std::size_t n = 0; n < bias.size(); ++n)
          bias[n] = 40.0F * static_cast<float>(std::cos(1.7 * static_cast<double>(n)));
        std::vector<double> lse(count(column));
        AttentionInputs in;
        in.q = in.k = in.v = make_view<const float>(x.data(), shape);
        in.bias = make_view<const float>(bias.data(), map);
        in.key_bias = make_view<const float>(key_bias.data(), Shape{2, 1, 1, T});
        AttentionOptions options;
        options.context.target = find_target(target);
        const TensorView y_view = make_view(y.data(), shape), lse_view = make_view(lse.data(), column);
        attention_forward({.y = y_view, .lse = lse_view}, in, options);
        AttentionIncoming incoming;
        incoming.dy = make_view<const float>(ones.data(), shape);
        AttentionGradients gradients;
        gradients.dq = make_view(dq.data(), shape);
        gradients.dk = make_view(dk.data(), shape);
        gradients.dv = make_view(dv.data(), shape);
        if (with_dbias) gradients.dbias = make_view(dbias.data(), map);
        attention_backward(gradients, in, {y_view, lse_view, {}}, incoming, options);
        for (const auto* each : {&dq, &dk, &dv, &dbias}) {
          ASSERT_TRUE(std::all_of(each->begin(), each->end(), [](float g) { return std::isfinite(g); })) << target << T;
        }
        const double sum = std::accumulate(dv.begin(), dv.end(), 0.0);  // do is 1: the sum of P over queries and keys
        EXPECT_NEAR(sum / static_cast<double>(x.size()), 1.0, 1e-4) << target << ", " << T << ", dbias " << with_dbias;
      }
    }
  }
}

/// A sink of any finite size is a number: the largest take all of the weight, the lowest none.
TEST(Extremes, Sink_LargestAndLowestNumber_TakesAllOrNothing) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (const std::string& target : supported_targets()) {
    for (const std::int64_t T : {1, 4, 70}) {
      const std::vector<float> x(static_cast<std::size_t>(2 * T * 16), 1.0F), sinks{kLargest, -kLargest};
      std::vector<float> y(x.size()), lse(static_cast<std::size_t>(2 * T));
      AttentionInputs in;
      in.q = in.k = in.v = make_view<const float>(x.data(), Shape{1, 2, T, 16});
      in.sinks = make_vector_view<const float>(sinks.data(), 2);
      AttentionOptions options;
      options.context.target = find_target(target);
      attention_forward({.y = make_view(y.data(), in.q.shape), .lse = make_view(lse.data(), Shape{1, 2, T, 1})}, in,
                        options);
      EXPECT_EQ(y[0], 0.0F) << target << ", " << T;
      EXPECT_FLOAT_EQ(y.back(), 1.0F) << target << ", " << T;
      EXPECT_FALSE(std::isnan(lse[0]) || std::isnan(lse.back())) << target << ", " << T;
    }
  }
}

/// Returns y and lse of 100 queries against 900 keys of D = 16, for the tiles kernel. Every seventh key is hidden by a
/// bias of −∞, or by a mask, and consists of the number `hidden`.
std::vector<double> results_beside_hidden_keys(float hidden, bool by_mask, std::int64_t target) {
  constexpr std::int64_t kT = 100, kS = 900, kD = 16;
  const auto fill = [](std::int64_t n, double step) {
    std::vector<float> x(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(std::sin(step * static_cast<double>(i)));
    return x;
  };
  const std::vector<float> q = fill(kT * kD, 0.7), v = fill(kS * kD, 0.3);
  std::vector<float> k = fill(kS * kD, 0.9), bias = fill(kT * kS, 0.1), y(q.size());
  std::vector<std::uint8_t> mask(bias.size(), 1);
  for (std::int64_t j = 0; j < kS; j += 7) {
    std::fill_n(k.begin() + j * kD, kD, hidden);
    for (std::int64_t i = 0; i < kT; ++i) {
      bias[static_cast<std::size_t>(i * kS + j)] = -std::numeric_limits<float>::infinity();
      mask[static_cast<std::size_t>(i * kS + j)] = 0;
    }
  }
  std::vector<double> results(static_cast<std::size_t>(kT));
  AttentionInputs in;
  in.q = make_view<const float>(q.data(), Shape{1, 1, kT, kD});
  in.k = make_view<const float>(k.data(), Shape{1, 1, kS, kD});
  in.v = make_view<const float>(v.data(), Shape{1, 1, kS, kD});
  const Shape map{1, 1, kT, kS};
  if (by_mask) in.mask = make_view<const std::uint8_t>(mask.data(), map);
  if (!by_mask) in.bias = make_view<const float>(bias.data(), map);
  AttentionOptions options;
  options.context.target = target;
  const TensorView lse = make_view(results.data(), Shape{1, 1, kT, 1});
  attention_forward({.y = make_view(y.data(), in.q.shape), .lse = lse}, in, options);
  results.insert(results.end(), y.begin(), y.end());
  return results;
}

/// Beside sinks, the largest score of a row may be far below its running maximum.
TEST(Extremes, Bias_LowestNumberBesideSinks_IsTheLargestScore) {
  constexpr std::int64_t kT = 70, kS = 600, kD = 8;
  const std::vector<float> q(kT * kD), k(kS * kD), bias(kS, std::numeric_limits<float>::lowest()), sinks{0.0F};
  std::vector<float> y(q.size());
  std::vector<double> max_logit(kT);
  for (const std::string& target : supported_targets()) {
    AttentionInputs in;
    in.q = make_view<const float>(q.data(), Shape{1, 1, kT, kD});
    in.k = in.v = make_view<const float>(k.data(), Shape{1, 1, kS, kD});
    in.bias = {bias.data(), DType::f32, {1, 1, kT, kS}, {0, 0, 0, 1}};
    in.sinks = make_vector_view<const float>(sinks.data(), 1);
    AttentionOptions options;
    options.context.target = find_target(target);
    AttentionOutputs out;
    out.y = make_view(y.data(), in.q.shape);
    out.max_logit = make_view(max_logit.data(), Shape{1, 1, kT, 1});
    attention_forward(out, in, options);
    for (const double each : max_logit) EXPECT_TRUE(std::isfinite(each) && each < -1e38) << target << ": " << each;
  }
}

TEST(Extremes, HiddenKeys_ProductsOverflow_ChangeNoBit) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (const std::string& target : supported_targets()) {
    for (const bool by_mask : {false, true}) {
      const std::int64_t number = find_target(target);
      const std::vector<double> expected = results_beside_hidden_keys(0.0F, by_mask, number);
      EXPECT_EQ(results_beside_hidden_keys(kLargest, by_mask, number), expected) << target << ", mask " << by_mask;
      EXPECT_EQ(results_beside_hidden_keys(-kLargest, by_mask, number), expected) << target << ", mask " << by_mask;
    }
  }
}

/// A bias that rises or falls by ½ from key to key moves the running maxima in every block, or in none.
TEST(Extremes, Bias_Steep_MatchesItsSoftmax) {
  constexpr std::int64_t kT = 70, kS = 1500, kD = 8;
  for (const std::string& target : supported_targets()) {
    for (const double slope : {0.5, -0.5}) {
      std::vector<float> q(kT * kD), k(kS * kD, 1.0F), v(kS * kD), bias(kS), y(q.size());
      double sum = 0, weighted = 0;
      for (std::int64_t j = 0; j < kS; ++j) {
        bias[static_cast<std::size_t>(j)] = static_cast<float>(slope * static_cast<double>(j));
        const double value = std::cos(static_cast<double>(j));
        std::fill_n(v.begin() + j * kD, kD, static_cast<float>(value));
        const double weight = std::exp(slope * static_cast<double>(j - (slope > 0 ? kS - 1 : 0)));
        sum += weight;
        weighted += weight * value;
      }
      AttentionInputs in;
      in.q = make_view<const float>(q.data(), Shape{1, 1, kT, kD});
      in.k = make_view<const float>(k.data(), Shape{1, 1, kS, kD});
      in.v = make_view<const float>(v.data(), Shape{1, 1, kS, kD});
      in.bias = {bias.data(), DType::f32, {1, 1, kT, kS}, {0, 0, 0, 1}};
      AttentionOptions options;
      options.context.target = find_target(target);
      attention_forward({.y = make_view(y.data(), in.q.shape)}, in, options);
      for (const float each : y) ASSERT_NEAR(each, weighted / sum, 1e-4) << target << ", slope " << slope;
    }
  }
}

TEST(Extremes, Bias_InfinityOrNaN_ChangesItsOwnRowsOnly) {
  for (const DType dtype : kDTypes) {
    for (const bool sinks : {false, true}) {
      CaseSpec spec = sized(70, sinks ? 50 : 600, 16, 16);
      spec.Hkv = 2;
      spec.dtype = dtype;
      spec.bias = {true, true, true, true};
      spec.bias_breaks = true;
      spec.sinks = sinks ? DType::f64 : DType::none;
      spec.attn = spec.weights = true;
      expect_right(spec, check_forward_case);
      // A key's gradient sums over queries, including those with NaN; a query's gradient does not.
      spec.absent_gradients = 63U & ~verify::kDq;
      expect_right(spec, check_backward_case);
    }
  }
}

/// Checks that one NaN among the scores of a row reaches all of its output, wherever it lies, and no other row.
void expect_nan_in_its_rows(std::int64_t T, std::int64_t S, std::int64_t target) {
  constexpr std::int64_t kD = 16, kDv = 8;
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> q(T * kD, 0.5F), k(S * kD, 0.25F), v(S * kDv, 1.0F), y(T * kDv);
  q[kD + 1] = kNaN;        // query 1
  k[(S - 1) * kD] = kNaN;  // only the last query sees this key
  AttentionInputs in;
  in.q = make_view<const float>(q.data(), Shape{1, 1, T, kD});
  in.k = make_view<const float>(k.data(), Shape{1, 1, S, kD});
  in.v = make_view<const float>(v.data(), Shape{1, 1, S, kDv});
  AttentionOutputs out;
  out.y = make_view(y.data(), Shape{1, 1, T, kDv});
  AttentionOptions options;
  options.causality = Causality::causal;
  options.context.target = target;
  attention_forward(out, in, options);
  for (std::int64_t n = 0; n < T * kDv; ++n) {
    const std::int64_t i = n / kDv;
    if (i == 1 || i == T - 1) {
      EXPECT_TRUE(std::isnan(y[n])) << "query " << i << " of " << T << ", " << S << " keys: " << y[n];
    } else {
      EXPECT_NEAR(y[n], 1.0F, 1e-5F) << "query " << i << " of " << T << ", " << S << " keys";
    }
  }
}

TEST(Extremes, QueryOrKey_NaN_ChangesTheRowsThatSeeItOnly) {
  for (const std::string& target : supported_targets()) {
    SCOPED_TRACE(target);
    for (const std::int64_t T : {3, 8, 70, 200}) {
      for (const std::int64_t S : {T, T + 7, T + 1100}) expect_nan_in_its_rows(T, S, find_target(target));
    }
  }
}

/// What hides keys from every query.
enum class Hiding { bias, mask, window, offsets };

/// `spec` with keys that no query sees, whose k and v are the largest numbers of the dtype.
CaseSpec with_huge_hidden_keys(CaseSpec spec, Hiding hiding) {
  spec.huge_hidden_keys = true;
  switch (hiding) {
    case Hiding::bias: spec.bias = {true, false, false, true}; break;
    case Hiding::mask: spec.mask = {true, false, false, true}; break;
    case Hiding::window: spec.window_left = spec.window_right = spec.S / 8; break;
    case Hiding::offsets:
      spec.causality = Causality::causal;
      spec.query_offsets = DType::i32;
      break;
  }
  return spec;
}

/// Checks that nothing of hidden keys is left in any result of `spec`, however they are hidden.
void expect_hidden_keys_leave_nothing(const CaseSpec& spec) {
  for (const Hiding hiding : {Hiding::bias, Hiding::mask, Hiding::window, Hiding::offsets}) {
    const CaseSpec hidden = with_huge_hidden_keys(spec, hiding);
    SCOPED_TRACE(describe(hidden));
    expect_right(hidden, check_forward_case);
    expect_right(hidden, verify::check_statistics_case);
    if (!hidden.forward_only()) expect_right(hidden, check_backward_case);
  }
}

/// A sequence for each row of the tables of route.cc (few_queries, small_heads, tiles; bf16 has native16 too).
TEST(Extremes, HiddenKeys_LargestNumbers_LeaveNothingOnAnyRoute) {
  for (const DType dtype : kDTypes) {
    for (const auto& [T, S] : {std::pair{1, 70}, {3, 300}, {40, 50}, {70, 300}, {70, 600}}) {
      CaseSpec spec = sized(T, S, 16, 20);
      spec.Hkv = 2;
      spec.group = 2;
      spec.dtype = dtype;
      expect_hidden_keys_leave_nothing(spec);
      spec.softcap = 20.0;  // whose slope is no number where the product is none
      expect_hidden_keys_leave_nothing(spec);
      spec.softcap = 0.0;
      spec.dropout = 0.3;
      expect_hidden_keys_leave_nothing(spec);
      spec.dropout = 0.0;
      spec.quantized = true;
      expect_hidden_keys_leave_nothing(spec);
      spec.page = 10;
      spec.key_lengths = DType::i32;
      expect_hidden_keys_leave_nothing(spec);
    }
    CaseSpec packed = sized(150, 600, 16, 20);
    packed.dtype = dtype;
    packed.cu_seqlens = DType::i32;
    packed.packed = 4;
    packed.packed_queries = {1, 30, 0, 119};
    packed.packed_keys = {200, 60, 40, 300};
    expect_hidden_keys_leave_nothing(packed);
  }
  for (const auto& [T, S] : {std::pair{64, 64}, {150, 200}}) {
    CaseSpec spec = sized(T, S, 32, 32);
    spec.dtype = DType::bf16;
    spec.precision = Precision::native16;
    expect_hidden_keys_leave_nothing(spec);
    spec.softcap = 20.0;
    expect_hidden_keys_leave_nothing(spec);
  }
}

/// A visible key that dropout drops leaves −P Δ in its ds, however large its v.
TEST(Extremes, DroppedKey_LargestNumber_LeavesFiniteGradients) {
  constexpr std::int64_t kKeys = 8, kD = 8;
  AttentionOptions options;
  options.dropout = 0.5;
  options.dropout_seed = 3;
  const std::vector<float> q(kD, 1.0F), k(kKeys * kD, 0.5F), dy(kD, 2.0F);
  std::vector<float> v(kKeys * kD, 1.0F), y(kD), dq(kD, std::nanf("")), dv(v.size());
  std::int64_t dropped = 0;
  for (std::int64_t j = 0; j < kKeys; ++j) {
    if (reference::dropout_factor(options, 0, 0, 0, j) != 0.0) continue;
    std::fill_n(v.begin() + j * kD, kD, std::numeric_limits<float>::max());
    ++dropped;
  }
  ASSERT_GT(dropped, 0);
  ASSERT_LT(dropped, kKeys);
  double lse = 0;
  AttentionInputs in;
  in.q = make_view<const float>(q.data(), Shape{1, 1, 1, kD});
  in.k = make_view<const float>(k.data(), Shape{1, 1, kKeys, kD});
  in.v = make_view<const float>(v.data(), Shape{1, 1, kKeys, kD});
  const TensorView y_view = make_view(y.data(), in.q.shape), lse_view = make_view(&lse, Shape{1, 1, 1, 1});
  for (const std::string& target : supported_targets()) {
    options.context.target = find_target(target);
    attention_forward({.y = y_view, .lse = lse_view}, in, options);
    AttentionIncoming incoming;
    incoming.dy = make_view<const float>(dy.data(), in.q.shape);
    AttentionGradients gradients;
    gradients.dq = make_view(dq.data(), in.q.shape);
    gradients.dv = make_view(dv.data(), in.v.shape);
    attention_backward(gradients, in, {y_view, lse_view, {}}, incoming, options);
    for (const float x : dq) EXPECT_TRUE(std::isfinite(x)) << target << ": " << x;
    for (const float x : dv) EXPECT_TRUE(std::isfinite(x)) << target << ": " << x;
  }
}

TEST(Extremes, Dimensions_Empty_WriteZerosOrNothing) {
  for (const DType dtype : kDTypes) {
    for (const bool sinks : {false, true}) {
      CaseSpec spec = sized(5, 6, 4, 3);
      spec.dtype = dtype;
      spec.bias = {true, true, true, true};
      spec.sinks = sinks ? DType::f32 : DType::none;
      spec.dlse = DType::f32;
      spec.attn = spec.weights = true;
      for (const auto size : {&CaseSpec::B, &CaseSpec::Hkv, &CaseSpec::group, &CaseSpec::T, &CaseSpec::S}) {
        CaseSpec empty = spec;
        empty.*size = 0;
        expect_both(empty);
      }
    }
  }
}

TEST(Extremes, Sizes_SmallestLargestAndOdd_MatchTheOracle) {
  for (const DType dtype : kDTypes) {
    for (const auto& [T, S] : {std::pair{1, 1}, {1, 300}, {300, 1}, {2, 513}, {193, 257}}) {
      CaseSpec spec = sized(T, S, 8, 8);
      spec.dtype = dtype;
      expect_both(spec);
      spec.causality = Causality::causal;
      expect_both(spec);
    }
    for (const auto& [D, Dv] : {std::pair{1, 1}, {512, 512}, {1, 512}, {512, 1}, {511, 509}}) {
      CaseSpec spec = sized(17, 33, D, Dv);
      spec.dtype = dtype;
      expect_both(spec);
    }
  }
}

/// Case puts NaN into k, v and bias at and beyond the key length. It must not reach any result.
TEST(Extremes, Keys_BeyondTheKeyLength_AreNotRead) {
  for (const DType dtype : kDTypes) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      CaseSpec spec = sized(40, 310, 16, 24);
      spec.B = 3;
      spec.dtype = dtype;
      spec.key_lengths = seed % 2 == 0 ? DType::i32 : DType::i64;
      spec.bias = {seed > 2, true, false, true};
      spec.causality = seed > 4 ? Causality::causal : Causality::none;
      spec.seed = seed;
      spec.weights = true;
      expect_both(spec);
    }
  }
}

/// With ALiBi the largest score of a row changes by hundreds from block to block.
TEST(Extremes, RowMaximum_RisesWithEveryBlock_MatchesTheOracle) {
  for (const DType dtype : kDTypes) {
    for (const Causality causality : {Causality::none, Causality::causal}) {
      CaseSpec spec = sized(5, 900, 8, 8);
      spec.group = 3;
      spec.dtype = dtype;
      spec.alibi_slopes = DType::f32;
      spec.causality = causality;
      spec.weights = true;
      expect_both(spec);
      spec.sinks = DType::f32;
      expect_both(spec);
    }
  }
}

TEST(Extremes, Window_LargerThanTheSequence_MatchesTheOracle) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  for (const auto& [left, right] : {std::pair{kHuge, kHuge}, {kHuge, std::int64_t{0}}, {std::int64_t{0}, kHuge}}) {
    CaseSpec spec = sized(30, 41, 8, 8);
    spec.window_left = left;
    spec.window_right = right;
    expect_both(spec);
  }
}

}  // namespace
}  // namespace headgate
