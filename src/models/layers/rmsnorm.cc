// SPDX-License-Identifier: Apache-2.0
#include "models/layers/rmsnorm.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "library/core/dispatch.hpp"
#include "models/layers/parallel.hpp"

#ifndef HEADGATE_LAYERS_RMSNORM_CALL_  // this file is read once per Highway target
#define HEADGATE_LAYERS_RMSNORM_CALL_
namespace headgate::layers {

template <typename T>
struct NormForward {
  View<T, 3> y;
  View<T, 2> rstd;
  View<const T, 3> x;
  View<const T, 1> w;
  NormOptions options;
};

/// Arguments of the backward pass other than dw.
template <typename T>
struct NormBackward {
  View<T, 3> dx;
  View<const T, 3> dy, x;
  View<const T, 1> w;
  View<const T, 2> rstd;
  NormOptions options;
  Update update_dx;
};

}  // namespace headgate::layers
#endif  // HEADGATE_LAYERS_RMSNORM_CALL_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/layers/rmsnorm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "models/layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

/// Returns the factor that multiplies x·rstd: w or 1 + w.
template <typename T, class Lanes>
HWY_INLINE Vec<T> weight_at(const Lanes& lanes, const T* w, Vec<T> offset) {
  return hn::Add(lanes.load(w), offset);
}

template <typename T>
void norm_forward_rows(const NormForward<T>& a, std::int64_t begin, std::int64_t end) {
  const Tag<T> d;
  const std::int64_t H = a.x.shape[1], D = a.x.shape[2];
  const T* w = a.w.data;
  const auto offset = hn::Set(d, a.options.kind == NormKind::zero_centred ? T{1} : T{0});
  for (std::int64_t n = begin; n < end; ++n) {
    for (std::int64_t h = 0; h < H; ++h) {
      const T* x = a.x.at(n, h);
      T* y = a.y.at(n, h);
      const T squares = sum_vectors<T>(D, [&](std::int64_t c, auto lanes) HWY_ATTR {
        const auto v = lanes.load(x + c);
        return hn::Mul(v, v);
      });
      const T scale = T{1} / std::sqrt(squares / static_cast<T>(D) + static_cast<T>(a.options.eps));
      if (a.rstd.present()) a.rstd(n, h) = scale;
      const auto factor = hn::Set(d, scale);
      each_vector<T>(D, [&](std::int64_t c, auto lanes) HWY_ATTR {
        const auto normed = hn::Mul(lanes.load(x + c), factor);
        lanes.store(hn::Mul(normed, weight_at(lanes, w + c, offset)), y + c);
      });
    }
  }
}

/// dw(D) += this range's sum, unless dw is null.
template <typename T>
void norm_backward_rows(const NormBackward<T>& a, T* dw, std::int64_t begin, std::int64_t end) {
  const Tag<T> d;
  const std::int64_t H = a.x.shape[1], D = a.x.shape[2];
  const T* w = a.w.data;
  const auto offset = hn::Set(d, a.options.kind == NormKind::zero_centred ? T{1} : T{0});
  for (std::int64_t n = begin; n < end; ++n) {
    for (std::int64_t h = 0; h < H; ++h) {
      const T* x = a.x.at(n, h);
      const T* dy = a.dy.at(n, h);
      T* dx = a.dx.at(n, h);
      const T scale = a.rstd(n, h);
      const auto factor = hn::Set(d, scale);
      const T dot = sum_vectors<T>(D, [&](std::int64_t c, auto lanes) HWY_ATTR {
        return hn::Mul(hn::Mul(lanes.load(dy + c), weight_at(lanes, w + c, offset)), lanes.load(x + c));
      });
      if (dw != nullptr) {
        each_vector<T>(D, [&](std::int64_t c, auto lanes) HWY_ATTR {
          const auto normed = hn::Mul(lanes.load(x + c), factor);
          lanes.store(hn::MulAdd(lanes.load(dy + c), normed, lanes.load(dw + c)), dw + c);
        });
      }
      // x̂·mean(g·x̂) = x·(scale²·dot/D)
      const auto along_x = hn::Set(d, scale * scale * dot / static_cast<T>(D));
      each_vector<T>(D, [&](std::int64_t c, auto lanes) HWY_ATTR {
        const auto g = hn::Mul(lanes.load(dy + c), weight_at(lanes, w + c, offset));
        const auto v = hn::Mul(factor, hn::NegMulAdd(along_x, lanes.load(x + c), g));
        lanes.store(a.update_dx == Update::add ? hn::Add(v, lanes.load(dx + c)) : v, dx + c);
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
void rmsnorm_forward(View<T, 3> y, View<T, 2> rstd, ConstView<T, 3> x, ConstView<T, 1> w, const NormOptions& options,
                     const ExecutionContext& context) {
  const auto [N, H, D] = x.shape;
  assert(y.shape == x.shape && has_whole_rows(y) && has_whole_rows(x) && w.shape[0] == D && has_whole_rows(w));
  assert(!rstd.present() || (rstd.shape[0] == N && rstd.shape[1] == H));
  const auto kernel = HEADGATE_FOR_TARGET(norm_forward_rows, T, context.target);
  const NormForward<T> call{y, rstd, x, w, options};
  for_parts(parts_of(context, N, H * D),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { kernel(call, begin, end); });
}

template <typename T>
void rmsnorm_backward(View<T, 3> dx, View<T, 1> dw, ConstView<T, 3> dy, ConstView<T, 3> x, ConstView<T, 1> w,
                      ConstView<T, 2> rstd, const NormOptions& options, Update update_dx,
                      const ExecutionContext& context) {
  const auto [N, H, D] = x.shape;
  assert(dx.shape == x.shape && dy.shape == x.shape && w.shape[0] == D && has_whole_rows(w));
  assert(has_whole_rows(dx) && has_whole_rows(dy) && has_whole_rows(x));
  assert(rstd.shape[0] == N && rstd.shape[1] == H && (!dw.present() || dw.shape[0] == D));
  const auto kernel = HEADGATE_FOR_TARGET(norm_backward_rows, T, context.target);
  const NormBackward<T> call{dx, dy, x, w, rstd, options, update_dx};
  const Parts parts = parts_of(context, N, H * D);
  // Each part sums its own dw(D), which lies on other cache lines than the next part's. They are then added in order.
  const std::int64_t width = D, spacing = D + kFalseSharingElements<T>;
  T* partial = dw.present() ? scratch<T>(spacing * parts.count) : nullptr;
  for_parts(parts, [&](std::int64_t part, std::int64_t begin, std::int64_t end) {
    T* own = partial != nullptr ? partial + part * spacing : nullptr;
    if (own != nullptr) std::fill(own, own + width, T{0});
    kernel(call, own, begin, end);
  });
  for (std::int64_t part = 0; partial != nullptr && part < parts.count; ++part) {
    for (std::int64_t i = 0; i < D; ++i) dw(i) += partial[part * spacing + i];
  }
}

template void rmsnorm_forward(View<float, 3>, View<float, 2>, ConstView<float, 3>, ConstView<float, 1>,
                              const NormOptions&, const ExecutionContext&);
template void rmsnorm_forward(View<double, 3>, View<double, 2>, ConstView<double, 3>, ConstView<double, 1>,
                              const NormOptions&, const ExecutionContext&);
template void rmsnorm_backward(View<float, 3>, View<float, 1>, ConstView<float, 3>, ConstView<float, 3>,
                               ConstView<float, 1>, ConstView<float, 2>, const NormOptions&, Update,
                               const ExecutionContext&);
template void rmsnorm_backward(View<double, 3>, View<double, 1>, ConstView<double, 3>, ConstView<double, 3>,
                               ConstView<double, 1>, ConstView<double, 2>, const NormOptions&, Update,
                               const ExecutionContext&);

}  // namespace headgate::layers
#endif  // HWY_ONCE
