// SPDX-License-Identifier: Apache-2.0
#include "models/layers/rmsnorm.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "library/core/dispatch.hpp"
#include "models/layers/parallel.hpp"

#ifndef HEADGATE_LAYERS_RMSNORM_CALL_  // Highway compiles this file once per SIMD target
#define HEADGATE_LAYERS_RMSNORM_CALL_
namespace headgate::layers {

/// Arguments of the forward pass, which reads elements X and writes elements Y.
template <typename Y, typename X>
struct NormForward {
  using T = Wide<X>;
  View<Y, 3> y;
  View<T, 2> rstd;
  View<const X, 3> x;
  View<const T, 1> w;
  NormOptions options;
};

/// Arguments of the backward pass, except dw.
template <typename DX, typename DY, typename X>
struct NormBackward {
  using T = Wide<X>;
  View<DX, 3> dx;
  View<const DY, 3> dy;
  View<const X, 3> x;
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

// Headers that Highway compiles once per SIMD target must follow foreach_target.h.
#include "models/layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

/// Returns the factor by which x·rstd is multiplied: w + offset. The offset is 1 for zero-centred norms, otherwise 0.
template <typename T, class Lanes>
HWY_INLINE Vec<T> weight_at(const Lanes& lanes, const T* w, Vec<T> offset) {
  return hn::Add(lanes.load(w), offset);
}

template <class Call>
void norm_forward_rows(const Call& a, std::int64_t begin, std::int64_t end) {
  using T = typename Call::T;
  const Tag<T> d;
  const std::int64_t H = a.x.shape[1], D = a.x.shape[2];
  const T* w = a.w.data;
  const auto offset = hn::Set(d, a.options.kind == NormKind::zero_centred ? T{1} : T{0});
  for (std::int64_t n = begin; n < end; ++n) {
    for (std::int64_t h = 0; h < H; ++h) {
      const auto* x = a.x.at(n, h);
      auto* y = a.y.at(n, h);
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

/// Computes dx for tokens [begin, end). If dw(D) is not null, also adds the gradient of w over these tokens to it.
template <class Call>
void norm_backward_rows(const Call& a, typename Call::T* dw, std::int64_t begin, std::int64_t end) {
  using T = typename Call::T;
  const Tag<T> d;
  const std::int64_t H = a.x.shape[1], D = a.x.shape[2];
  const T* w = a.w.data;
  const auto offset = hn::Set(d, a.options.kind == NormKind::zero_centred ? T{1} : T{0});
  for (std::int64_t n = begin; n < end; ++n) {
    for (std::int64_t h = 0; h < H; ++h) {
      const auto* x = a.x.at(n, h);
      const auto* dy = a.dy.at(n, h);
      auto* dx = a.dx.at(n, h);
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
      // x̂·mean(g·x̂) = x·(scale²·dot/D), because x̂ = scale·x and dot = Σ g·x.
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

template <typename Y, typename X>
void rmsnorm_forward(View<Y, 3> y, View<Wide<Y>, 2> rstd, ConstView<X, 3> x, ConstView<Wide<Y>, 1> w,
                     const NormOptions& options, const ExecutionContext& context) {
  const auto [N, H, D] = x.shape;
  assert(y.shape == x.shape && has_whole_rows(y) && has_whole_rows(x) && w.shape[0] == D && has_whole_rows(w));
  assert(!rstd.present() || (rstd.shape[0] == N && rstd.shape[1] == H));
  using Call = NormForward<Y, X>;
  const auto kernel = HEADGATE_FOR_TARGET(norm_forward_rows, Call, context.target);
  const Call call{y, rstd, x, w, options};
  for_parts(parts_of(context, N, H * D),
            [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) { kernel(call, begin, end); });
}

template <typename DX, typename DY, typename X>
void rmsnorm_backward(View<DX, 3> dx, View<Wide<DX>, 1> dw, ConstView<DY, 3> dy, ConstView<X, 3> x,
                      ConstView<Wide<DX>, 1> w, ConstView<Wide<DX>, 2> rstd, const NormOptions& options,
                      Update update_dx, const ExecutionContext& context) {
  const auto [N, H, D] = x.shape;
  assert(dx.shape == x.shape && dy.shape == x.shape && w.shape[0] == D && has_whole_rows(w));
  assert(has_whole_rows(dx) && has_whole_rows(dy) && has_whole_rows(x));
  assert(rstd.shape[0] == N && rstd.shape[1] == H && (!dw.present() || dw.shape[0] == D));
  using T = Wide<DX>;
  using Call = NormBackward<DX, DY, X>;
  const auto kernel = HEADGATE_FOR_TARGET(norm_backward_rows, Call, context.target);
  const Call call{dx, dy, x, w, rstd, options, update_dx};
  const Parts parts = parts_of(context, N, H * D);
  // Gives each part of the tokens a separate sum dw(D), on cache lines that no other part writes. Adds these sums in
  // the order of the parts, so that results are reproducible.
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

#define HEADGATE_NORM_FORWARD(Y, X)                                                                         \
  template void rmsnorm_forward<Y, X>(View<Y, 3>, View<Wide<Y>, 2>, ConstView<X, 3>, ConstView<Wide<Y>, 1>, \
                                      const NormOptions&, const ExecutionContext&);
#define HEADGATE_NORM_BACKWARD(DX, DY, X)                                                                       \
  template void rmsnorm_backward<DX, DY, X>(View<DX, 3>, View<Wide<DX>, 1>, ConstView<DY, 3>, ConstView<X, 3>,  \
                                            ConstView<Wide<DX>, 1>, ConstView<Wide<DX>, 2>, const NormOptions&, \
                                            Update, const ExecutionContext&);
HEADGATE_NORM_FORWARD(float, float)
HEADGATE_NORM_FORWARD(double, double)
HEADGATE_NORM_FORWARD(BFloat16, BFloat16)
HEADGATE_NORM_FORWARD(BFloat16, float)
HEADGATE_NORM_FORWARD(float, BFloat16)
HEADGATE_NORM_BACKWARD(float, float, float)
HEADGATE_NORM_BACKWARD(double, double, double)
HEADGATE_NORM_BACKWARD(BFloat16, BFloat16, BFloat16)
HEADGATE_NORM_BACKWARD(BFloat16, float, BFloat16)

#undef HEADGATE_NORM_FORWARD
#undef HEADGATE_NORM_BACKWARD

}  // namespace headgate::layers
#endif  // HWY_ONCE
