// SPDX-License-Identifier: Apache-2.0
#include "layers/rope.hpp"

#include <cmath>

#include "core/dispatch.hpp"
#include "headgate/runtime.hpp"
#include "layers/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layers/rope.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

/// Turns rows [begin, end) by `direction`·θ, direction 1 or −1.
template <typename T>
void rotate_rows(HeadView<T> x, const T* cos, const T* sin, const HeadShape& shape, const RopeShape& rope, T direction,
                 std::int64_t begin, std::int64_t end) {
  const Tag<T> d;
  const std::int64_t half = rope.rotary_dim / 2;
  const auto sign = hn::Set(d, direction);
  for (std::int64_t n = begin; n < end; ++n) {
    const T* c = cos + n % rope.seq_len * half;
    const T* s = sin + n % rope.seq_len * half;
    for (std::int64_t h = 0; h < shape.H; ++h) {
      T* low = x.data + n * x.token_stride + h * x.head_stride;
      T* high = low + half;
      each_vector<T>(half, [&](std::int64_t i, auto lanes) HWY_ATTR {
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

HEADGATE_TARGET_TABLE(rotate_rows);

template <typename T>
void rotate(HeadView<T> x, const T* cos, const T* sin, const HeadShape& shape, const RopeShape& rope, T direction) {
  if (rope.rotary_dim == 0) return;
  const auto kernel = HEADGATE_FOR_TARGET(rotate_rows, T, active_target_bit());
  for_parts(parts_of(shape.N, shape.H * rope.rotary_dim),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
              kernel(x, cos, sin, shape, rope, direction, begin, end);
            });
}

}  // namespace

template <typename T>
void rope_tables(T* cos, T* sin, std::int64_t seq_len, std::int64_t rotary_dim, double base) {
  const std::int64_t half = rotary_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
    for (std::int64_t t = 0; t < seq_len; ++t) {
      const double angle = static_cast<double>(t) * frequency;
      cos[t * half + i] = static_cast<T>(std::cos(angle));
      sin[t * half + i] = static_cast<T>(std::sin(angle));
    }
  }
}

template <typename T>
void rope_forward(HeadView<T> x, const T* cos, const T* sin, const HeadShape& shape, const RopeShape& rope) {
  rotate(x, cos, sin, shape, rope, T{1});
}

template <typename T>
void rope_backward(HeadView<T> dx, const T* cos, const T* sin, const HeadShape& shape, const RopeShape& rope) {
  rotate(dx, cos, sin, shape, rope, T{-1});
}

template void rope_tables(float*, float*, std::int64_t, std::int64_t, double);
template void rope_tables(double*, double*, std::int64_t, std::int64_t, double);
template void rope_forward(HeadView<float>, const float*, const float*, const HeadShape&, const RopeShape&);
template void rope_forward(HeadView<double>, const double*, const double*, const HeadShape&, const RopeShape&);
template void rope_backward(HeadView<float>, const float*, const float*, const HeadShape&, const RopeShape&);
template void rope_backward(HeadView<double>, const double*, const double*, const HeadShape&, const RopeShape&);

}  // namespace headgate::layers
#endif  // HWY_ONCE
