// SPDX-License-Identifier: Apache-2.0
#include "layers/elementwise.hpp"

#include <algorithm>

#include "core/dispatch.hpp"
#include "headgate/runtime.hpp"
#include "layers/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layers/elementwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

template <typename T>
void add_range(T* y, const T* x, std::int64_t n) {
  each_vector<T>(n, [&](std::int64_t i, auto lanes)
                        HWY_ATTR { lanes.store(hn::Add(lanes.load(y + i), lanes.load(x + i)), y + i); });
}

template <typename T>
void silu_forward_rows(HeadView<T> y, HeadView<const T> x, const HeadShape& shape, std::int64_t begin,
                       std::int64_t end) {
  const Tag<T> d;
  for (std::int64_t n = begin; n < end; ++n) {
    for (std::int64_t h = 0; h < shape.H; ++h) {
      const T* in = x.data + n * x.token_stride + h * x.head_stride;
      T* out = y.data + n * y.token_stride + h * y.head_stride;
      each_vector<T>(shape.D, [&](std::int64_t i, auto lanes) HWY_ATTR {
        const auto z = lanes.load(in + i);
        lanes.store(hn::Mul(z, SigmoidPair<Tag<T>>(d, z).sigma), out + i);
      });
    }
  }
}

template <typename T>
void silu_backward_rows(HeadView<T> dx, HeadView<const T> dy, HeadView<const T> x, const HeadShape& shape,
                        std::int64_t begin, std::int64_t end) {
  const Tag<T> d;
  for (std::int64_t n = begin; n < end; ++n) {
    for (std::int64_t h = 0; h < shape.H; ++h) {
      const T* in = x.data + n * x.token_stride + h * x.head_stride;
      const T* g = dy.data + n * dy.token_stride + h * dy.head_stride;
      T* out = dx.data + n * dx.token_stride + h * dx.head_stride;
      each_vector<T>(shape.D, [&](std::int64_t i, auto lanes) HWY_ATTR {
        const auto z = lanes.load(in + i);
        const SigmoidPair<Tag<T>> s(d, z);
        const auto slope = hn::MulAdd(hn::Mul(z, s.sigma), s.complement, s.sigma);  // σ + zσ(1 − σ)
        lanes.store(hn::Mul(lanes.load(g + i), slope), out + i);
      });
    }
  }
}

}  // namespace headgate::layers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate::layers {
namespace {

HEADGATE_TARGET_TABLE(add_range);
HEADGATE_TARGET_TABLE(silu_forward_rows);
HEADGATE_TARGET_TABLE(silu_backward_rows);

}  // namespace

template <typename T>
void fill_zero(T* y, std::int64_t n) {
  for_parts(parts_of(n, 1, kApart<T>),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { std::fill(y + begin, y + end, T{0}); });
}

template <typename T>
void copy_to(T* y, const T* x, std::int64_t n) {
  for_parts(parts_of(n, 1, kApart<T>), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    std::copy(x + begin, x + end, y + begin);
  });
}

template <typename T>
void add_to(T* y, const T* x, std::int64_t n) {
  const auto kernel = HEADGATE_FOR_TARGET(add_range, T, active_target_bit());
  for_parts(parts_of(n, 1, kApart<T>), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    kernel(y + begin, x + begin, end - begin);
  });
}

template <typename T>
void silu_forward(HeadView<T> y, ConstHeadView<T> x, const HeadShape& shape) {
  const auto kernel = HEADGATE_FOR_TARGET(silu_forward_rows, T, active_target_bit());
  for_parts(parts_of(shape.N, 2 * shape.H * shape.D),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { kernel(y, x, shape, begin, end); });
}

template <typename T>
void silu_backward(HeadView<T> dx, ConstHeadView<T> dy, ConstHeadView<T> x, const HeadShape& shape) {
  const auto kernel = HEADGATE_FOR_TARGET(silu_backward_rows, T, active_target_bit());
  for_parts(parts_of(shape.N, 2 * shape.H * shape.D),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { kernel(dx, dy, x, shape, begin, end); });
}

template void fill_zero(float*, std::int64_t);
template void fill_zero(double*, std::int64_t);
template void copy_to(float*, const float*, std::int64_t);
template void copy_to(double*, const double*, std::int64_t);
template void add_to(float*, const float*, std::int64_t);
template void add_to(double*, const double*, std::int64_t);
template void silu_forward(HeadView<float>, ConstHeadView<float>, const HeadShape&);
template void silu_forward(HeadView<double>, ConstHeadView<double>, const HeadShape&);
template void silu_backward(HeadView<float>, ConstHeadView<float>, ConstHeadView<float>, const HeadShape&);
template void silu_backward(HeadView<double>, ConstHeadView<double>, ConstHeadView<double>, const HeadShape&);

}  // namespace headgate::layers
#endif  // HWY_ONCE
