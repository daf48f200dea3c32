// SPDX-License-Identifier: Apache-2.0
#include "models/layers/elementwise.hpp"

#include <algorithm>
#include <cassert>
#include <type_traits>

#include "library/core/dispatch.hpp"
#include "models/layers/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/layers/elementwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Headers that Highway compiles once per SIMD target must follow foreach_target.h.
#include "models/layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

template <typename T>
void add_range(T* y, const T* x, std::int64_t n) {
  each_vector<T>(n, [&](std::int64_t i, auto lanes)
                        HWY_ATTR { lanes.store(hn::Add(lanes.load(y + i), lanes.load(x + i)), y + i); });
}

template <typename T>
void round_range(BFloat16* y, const T* x, std::int64_t n) {
  each_vector<T>(n, [&](std::int64_t i, auto lanes) HWY_ATTR { lanes.store(lanes.load(x + i), y + i); });
}

template <typename T>
void silu_forward_rows(const View<T, 3>& y, const View<const T, 3>& x, std::int64_t begin, std::int64_t end) {
  using W = Wide<T>;
  const Tag<W> d;
  for (std::int64_t n = begin; n < end; ++n) {
    for (std::int64_t h = 0; h < x.shape[1]; ++h) {
      const T* in = x.at(n, h);
      T* out = y.at(n, h);
      each_vector<W>(x.shape[2], [&](std::int64_t i, auto lanes) HWY_ATTR {
        const auto z = lanes.load(in + i);
        lanes.store(hn::Mul(z, SigmoidPair<Tag<W>>(d, z).sigma), out + i);
      });
    }
  }
}

template <typename T>
void silu_backward_rows(const View<T, 3>& dx, const View<const T, 3>& dy, const View<const T, 3>& x, std::int64_t begin,
                        std::int64_t end) {
  using W = Wide<T>;
  const Tag<W> d;
  for (std::int64_t n = begin; n < end; ++n) {
    for (std::int64_t h = 0; h < x.shape[1]; ++h) {
      const T* in = x.at(n, h);
      const T* g = dy.at(n, h);
      T* out = dx.at(n, h);
      each_vector<W>(x.shape[2], [&](std::int64_t i, auto lanes) HWY_ATTR {
        const auto z = lanes.load(in + i);
        const SigmoidPair<Tag<W>> s(d, z);
        // silu′(z) = σ + zσ(1 − σ), where σ is σ(z).
        const auto slope = hn::MulAdd(hn::Mul(z, s.sigma), s.complement, s.sigma);
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
HEADGATE_TARGET_TABLE(round_range);
HEADGATE_TARGET_TABLE(silu_forward_rows);
HEADGATE_TARGET_TABLE(silu_backward_rows);

}  // namespace

template <typename Y, typename X>
void copy_to(View<Y, 1> y, ConstView<X, 1> x, const ExecutionContext& context) {
  assert(y.shape == x.shape && y.dense() && x.dense());
  const Parts parts = parts_of(context, y.shape[0], 1, kFalseSharingElements<Y>);
  for_parts(parts, [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    if constexpr (std::is_same_v<Y, X>) {
      std::copy(x.data + begin, x.data + end, y.data + begin);
    } else {
      HEADGATE_FOR_TARGET(round_range, X, context.target)(y.data + begin, x.data + begin, end - begin);
    }
  });
}

template <typename T>
void add_to(View<T, 1> y, ConstView<T, 1> x, const ExecutionContext& context) {
  assert(y.shape == x.shape && y.dense() && x.dense());
  const auto kernel = HEADGATE_FOR_TARGET(add_range, T, context.target);
  const Parts parts = parts_of(context, y.shape[0], 1, kFalseSharingElements<T>);
  for_parts(parts, [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    kernel(y.data + begin, x.data + begin, end - begin);
  });
}

template <typename T>
void scale(View<T, 1> x, T factor, const ExecutionContext& context) {
  assert(x.dense());
  const Parts parts = parts_of(context, x.shape[0], 1, kFalseSharingElements<T>);
  for_parts(parts, [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) x(i) *= factor;
  });
}

template <typename T>
void silu_forward(View<T, 3> y, ConstView<T, 3> x, const ExecutionContext& context) {
  assert(y.shape == x.shape && has_whole_rows(y) && has_whole_rows(x));
  const auto kernel = HEADGATE_FOR_TARGET(silu_forward_rows, T, context.target);
  for_parts(parts_of(context, x.shape[0], 2 * x.shape[1] * x.shape[2]),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { kernel(y, x, begin, end); });
}

template <typename T>
void silu_backward(View<T, 3> dx, ConstView<T, 3> dy, ConstView<T, 3> x, const ExecutionContext& context) {
  assert(dx.shape == x.shape && dy.shape == x.shape);
  assert(has_whole_rows(dx) && has_whole_rows(dy) && has_whole_rows(x));
  const auto kernel = HEADGATE_FOR_TARGET(silu_backward_rows, T, context.target);
  for_parts(parts_of(context, x.shape[0], 2 * x.shape[1] * x.shape[2]),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { kernel(dx, dy, x, begin, end); });
}

template void copy_to(View<float, 1>, ConstView<float, 1>, const ExecutionContext&);
template void copy_to(View<double, 1>, ConstView<double, 1>, const ExecutionContext&);
template void copy_to<BFloat16, float>(View<BFloat16, 1>, ConstView<float, 1>, const ExecutionContext&);
template void add_to(View<float, 1>, ConstView<float, 1>, const ExecutionContext&);
template void add_to(View<double, 1>, ConstView<double, 1>, const ExecutionContext&);
template void scale(View<float, 1>, float, const ExecutionContext&);
template void scale(View<double, 1>, double, const ExecutionContext&);
template void silu_forward(View<float, 3>, ConstView<float, 3>, const ExecutionContext&);
template void silu_forward(View<double, 3>, ConstView<double, 3>, const ExecutionContext&);
template void silu_forward(View<BFloat16, 3>, ConstView<BFloat16, 3>, const ExecutionContext&);
template void silu_backward(View<float, 3>, ConstView<float, 3>, ConstView<float, 3>, const ExecutionContext&);
template void silu_backward(View<double, 3>, ConstView<double, 3>, ConstView<double, 3>, const ExecutionContext&);
template void silu_backward(View<BFloat16, 3>, ConstView<BFloat16, 3>, ConstView<BFloat16, 3>, const ExecutionContext&);

}  // namespace headgate::layers
#endif  // HWY_ONCE
