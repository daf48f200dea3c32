// SPDX-License-Identifier: Apache-2.0
#include "models/layers/rope.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numbers>

#include "library/core/dispatch.hpp"
#include "models/layers/parallel.hpp"

#ifndef HEADGATE_LAYERS_ROPE_CALL_  // Highway compiles this file once per SIMD target
#define HEADGATE_LAYERS_ROPE_CALL_
namespace headgate::layers {

template <typename T>
struct Rotation {
  View<T, 4> x;
  View<const Wide<T>, 2> cos, sin;
  Wide<T> direction;  ///< 1: rotates by θ; −1: rotates by −θ
};

}  // namespace headgate::layers
#endif  // HEADGATE_LAYERS_ROPE_CALL_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/layers/rope.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Headers that Highway compiles once per SIMD target must follow foreach_target.h.
#include "models/layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

/// Rotates tokens [begin, end). Token n is token n % T of sequence n / T.
template <typename T>
void rotate_tokens(const Rotation<T>& call, std::int64_t begin, std::int64_t end) {
  using W = Wide<T>;
  const Tag<W> d;
  const std::int64_t seq = call.x.shape[1], H = call.x.shape[2], half = call.cos.shape[1];
  const auto sign = hn::Set(d, call.direction);
  for (std::int64_t n = begin; n < end; ++n) {
    const std::int64_t t = n % seq;
    const W* c = call.cos.at(t);
    const W* s = call.sin.at(t);
    for (std::int64_t h = 0; h < H; ++h) {
      T* low = call.x.at(n / seq, t, h);
      T* high = low + half;
      each_vector<W>(half, [&](std::int64_t i, auto lanes) HWY_ATTR {
        const auto a = lanes.load(low + i);
        const auto b = lanes.load(high + i);
        const auto cosine = lanes.load(c + i);
        const auto sine = hn::Mul(sign, lanes.load(s + i));
        lanes.store(hn::NegMulAdd(b, sine, hn::Mul(a, cosine)), low + i);
        lanes.store(hn::MulAdd(a, sine, hn::Mul(b, cosine)), high + i);
      });
    }
  }
}

}  // namespace headgate::layers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate::layers {
namespace {

HEADGATE_TARGET_TABLE(rotate_tokens);

template <typename T>
void rotate(const Rotation<T>& call, const ExecutionContext& context) {
  const auto [B, seq, H, D] = call.x.shape;
  const std::int64_t half = call.cos.shape[1];
  assert(call.cos.shape[0] == seq && call.sin.shape == call.cos.shape && 2 * half <= D);
  assert(has_whole_rows(call.x) && has_whole_rows(call.cos) && has_whole_rows(call.sin));
  if (half == 0) return;
  const auto kernel = HEADGATE_FOR_TARGET(rotate_tokens, T, context.target);
  for_parts(parts_of(context, B * seq, H * 2 * half),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { kernel(call, begin, end); });
}

/// Returns the weights w of yarn for the R/2 frequencies: a frequency f becomes w·f + (1 − w)·f / factor.
std::vector<double> yarn_weights(std::int64_t R, double base, const RopeScaling& scaling) {
  const auto index_of = [&](double turns) {
    const double wave = static_cast<double>(scaling.original_seq_len) / (turns * 2.0 * std::numbers::pi);
    return static_cast<double>(R) * std::log(wave) / (2.0 * std::log(base));
  };
  double first = index_of(scaling.high_freq_factor), last = index_of(scaling.low_freq_factor);
  if (scaling.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(R - 1));
  if (first == last) last += 0.001;
  std::vector<double> out;
  for (std::int64_t i = 0; i < R / 2; ++i) {
    out.push_back(1.0 - std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0));
  }
  return out;
}

}  // namespace

double rope_attention_factor(const RopeScaling& scaling) {
  if (scaling.kind != RopeScalingKind::yarn) return 1.0;
  return scaling.attention_factor > 0.0 ? scaling.attention_factor : 0.1 * std::log(scaling.factor) + 1.0;
}

std::vector<double> rope_frequencies(std::int64_t R, double base, const RopeScaling& scaling) {
  const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
  std::vector<double> out, weights;
  if (scaling.kind == RopeScalingKind::yarn) weights = yarn_weights(R, base, scaling);
  for (std::int64_t i = 0; i < R / 2; ++i) {
    const double f = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(R));
    const double turns = static_cast<double>(scaling.original_seq_len) * f / (2.0 * std::numbers::pi);
    double kept = 1.0;  // weight of the unscaled frequency f in the sum below
    if (scaling.kind == RopeScalingKind::linear) kept = 0.0;
    if (scaling.kind == RopeScalingKind::llama3) kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    if (!weights.empty()) kept = weights[static_cast<std::size_t>(i)];
    out.push_back(kept * f + (1.0 - kept) * f / scaling.factor);
  }
  return out;
}

template <typename T>
void rope_tables(View<T, 2> cos, View<T, 2> sin, const View<const std::int64_t, 1>& positions,
                 const std::vector<double>& frequencies, double factor) {
  const auto [count, half] = cos.shape;
  assert(sin.shape == cos.shape && positions.shape[0] == count);
  assert(static_cast<std::int64_t>(frequencies.size()) == half);
  for (std::int64_t i = 0; i < half; ++i) {
    const double frequency = frequencies[static_cast<std::size_t>(i)];
    for (std::int64_t t = 0; t < count; ++t) {
      const double angle = static_cast<double>(positions(t)) * frequency;
      cos(t, i) = static_cast<T>(factor * std::cos(angle));
      sin(t, i) = static_cast<T>(factor * std::sin(angle));
    }
  }
}

template <typename T>
void rope_forward(View<T, 4> x, ConstView<Wide<T>, 2> cos, ConstView<Wide<T>, 2> sin, const ExecutionContext& context) {
  rotate(Rotation<T>{x, cos, sin, Wide<T>{1}}, context);
}

template <typename T>
void rope_backward(View<T, 4> dx, ConstView<Wide<T>, 2> cos, ConstView<Wide<T>, 2> sin,
                   const ExecutionContext& context) {
  rotate(Rotation<T>{dx, cos, sin, Wide<T>{-1}}, context);
}

template void rope_tables(View<float, 2>, View<float, 2>, const View<const std::int64_t, 1>&,
                          const std::vector<double>&, double);
template void rope_tables(View<double, 2>, View<double, 2>, const View<const std::int64_t, 1>&,
                          const std::vector<double>&, double);
template void rope_forward(View<float, 4>, ConstView<float, 2>, ConstView<float, 2>, const ExecutionContext&);
template void rope_forward(View<double, 4>, ConstView<double, 2>, ConstView<double, 2>, const ExecutionContext&);
template void rope_forward(View<BFloat16, 4>, ConstView<float, 2>, ConstView<float, 2>, const ExecutionContext&);
template void rope_backward(View<float, 4>, ConstView<float, 2>, ConstView<float, 2>, const ExecutionContext&);
template void rope_backward(View<double, 4>, ConstView<double, 2>, ConstView<double, 2>, const ExecutionContext&);
template void rope_backward(View<BFloat16, 4>, ConstView<float, 2>, ConstView<float, 2>, const ExecutionContext&);

}  // namespace headgate::layers
#endif  // HWY_ONCE
