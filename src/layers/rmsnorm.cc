// SPDX-License-Identifier: Apache-2.0
#include "layers/rmsnorm.hpp"

#include <algorithm>
#include <cmath>

#include "core/dispatch.hpp"
#include "headgate/runtime.hpp"
#include "layers/parallel.hpp"

#ifndef HEADGATE_LAYERS_RMSNORM_CALL_  // this file is read once per Highway target
#define HEADGATE_LAYERS_RMSNORM_CALL_
namespace headgate::layers {

/// What the backward pass reads and writes beside dw.
template <typename T>
struct NormBackward {
  HeadView<T> dx;
  HeadView<const T> dy, x;
  const T* w;
  const T* rstd;
  HeadShape shape;
  NormOptions options;
  Store store;
};

}  // namespace headgate::layers
#endif  // HEADGATE_LAYERS_RMSNORM_CALL_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layers/rmsnorm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

/// The factor that multiplies x·rstd: w or 1 + w.
template <typename T, class Lanes>
HWY_INLINE Vec<T> weight_at(const Lanes& lanes, const T* w, Vec<T> offset) {
  return hn::Add(lanes.load(w), offset);
}

template <typename T>
void norm_forward_rows(HeadView<T> y, T* rstd, HeadView<const T> x, const T* w, const HeadShape& shape,
                       const NormOptions& options, std::int64_t begin, std::int64_t end) {
  const Tag<T> d;
  const auto offset = hn::Set(d, options.kind == NormKind::zero_centred ? T{1} : T{0});
  for (std::int64_t n = begin; n < end; ++n) {
    for (std::int64_t h = 0; h < shape.H; ++h) {
      const T* xr = x.data + n * x.token_stride + h * x.head_stride;
      T* yr = y.data + n * y.token_stride + h * y.head_stride;
      const T* wr = w + h * options.w_head_stride;
      const T squares = sum_vectors<T>(shape.D, [&](std::int64_t c, auto lanes) HWY_ATTR {
        const auto v = lanes.load(xr + c);
        return hn::Mul(v, v);
      });
      const T scale = T{1} / std::sqrt(squares / static_cast<T>(shape.D) + static_cast<T>(options.eps));
      if (rstd != nullptr) rstd[n * shape.H + h] = scale;
      const auto factor = hn::Set(d, scale);
      each_vector<T>(shape.D, [&](std::int64_t c, auto lanes) HWY_ATTR {
        const auto normed = hn::Mul(lanes.load(xr + c), factor);
        lanes.store(hn::Mul(normed, weight_at(lanes, wr + c, offset)), yr + c);
      });
    }
  }
}

/// dw_part(H or 1, D) += this range's share; null: skipped.
template <typename T>
void norm_backward_rows(const NormBackward<T>& a, T* dw_part, std::int64_t begin, std::int64_t end) {
  const Tag<T> d;
  const std::int64_t D = a.shape.D;
  const auto offset = hn::Set(d, a.options.kind == NormKind::zero_centred ? T{1} : T{0});
  for (std::int64_t n = begin; n < end; ++n) {
    for (std::int64_t h = 0; h < a.shape.H; ++h) {
      const T* x = a.x.data + n * a.x.token_stride + h * a.x.head_stride;
      const T* dy = a.dy.data + n * a.dy.token_stride + h * a.dy.head_stride;
      T* dx = a.dx.data + n * a.dx.token_stride + h * a.dx.head_stride;
      const T* w = a.w + h * a.options.w_head_stride;
      const T scale = a.rstd[n * a.shape.H + h];
      const auto factor = hn::Set(d, scale);
      const T dot = sum_vectors<T>(D, [&](std::int64_t c, auto lanes) HWY_ATTR {
        return hn::Mul(hn::Mul(lanes.load(dy + c), weight_at(lanes, w + c, offset)), lanes.load(x + c));
      });
      if (dw_part != nullptr) {
        T* dw = dw_part + h * a.options.w_head_stride;
        each_vector<T>(D, [&](std::int64_t c, auto lanes) HWY_ATTR {
          const auto normed = hn::Mul(lanes.load(x + c), factor);
          lanes.store(hn::MulAdd(lanes.load(dy + c), normed, lanes.load(dw + c)), dw + c);
        });
      }
      // x̂·mean(g·x̂) = x·(scale²·dot/D)
      const auto pull = hn::Set(d, scale * scale * dot / static_cast<T>(D));
      each_vector<T>(D, [&](std::int64_t c, auto lanes) HWY_ATTR {
        const auto g = hn::Mul(lanes.load(dy + c), weight_at(lanes, w + c, offset));
        const auto v = hn::Mul(factor, hn::NegMulAdd(pull, lanes.load(x + c), g));
        lanes.store(a.store == Store::add ? hn::Add(v, lanes.load(dx + c)) : v, dx + c);
      });
    }
  }
}

}  // namespace headgate::layers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate::layers {
namespace {

HEADGATE_TARGET_TABLE(norm_forward_rows);
HEADGATE_TARGET_TABLE(norm_backward_rows);

}  // namespace

template <typename T>
void rmsnorm_forward(HeadView<T> y, T* rstd, ConstHeadView<T> x, const T* w, const HeadShape& shape,
                     const NormOptions& options) {
  const auto kernel = HEADGATE_FOR_TARGET(norm_forward_rows, T, active_target_bit());
  for_parts(parts_of(shape.N, shape.H * shape.D), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    kernel(y, rstd, x, w, shape, options, begin, end);
  });
}

template <typename T>
void rmsnorm_backward(HeadView<T> dx, T* dw, ConstHeadView<T> dy, ConstHeadView<T> x, const T* w, const T* rstd,
                      const HeadShape& shape, const NormOptions& options, Store store_dx) {
  const auto kernel = HEADGATE_FOR_TARGET(norm_backward_rows, T, active_target_bit());
  const NormBackward<T> call{dx, dy, x, w, rstd, shape, options, store_dx};
  const Parts parts = parts_of(shape.N, shape.H * shape.D);
  // Each part sums its own dw(w_size), far enough from the next's; then they are added in order.
  const std::int64_t w_size = options.w_head_stride == 0 ? shape.D : (shape.H - 1) * options.w_head_stride + shape.D;
  const std::int64_t spacing = w_size + kApart<T>;
  T* partial = dw != nullptr ? scratch<T>(spacing * parts.count) : nullptr;
  for_parts(parts, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    T* own = partial != nullptr ? partial + part * spacing : nullptr;
    if (own != nullptr) std::fill(own, own + w_size, T{0});
    kernel(call, own, begin, end);
  });
  for (std::int64_t part = 0; partial != nullptr && part < parts.count; ++part) {
    for (std::int64_t i = 0; i < w_size; ++i) dw[i] += partial[part * spacing + i];
  }
}

template void rmsnorm_forward(HeadView<float>, float*, ConstHeadView<float>, const float*, const HeadShape&,
                              const NormOptions&);
template void rmsnorm_forward(HeadView<double>, double*, ConstHeadView<double>, const double*, const HeadShape&,
                              const NormOptions&);
template void rmsnorm_backward(HeadView<float>, float*, ConstHeadView<float>, ConstHeadView<float>, const float*,
                               const float*, const HeadShape&, const NormOptions&, Store);
template void rmsnorm_backward(HeadView<double>, double*, ConstHeadView<double>, ConstHeadView<double>, const double*,
                               const double*, const HeadShape&, const NormOptions&, Store);

}  // namespace headgate::layers
#endif  // HWY_ONCE
