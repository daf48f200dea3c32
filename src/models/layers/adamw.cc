// SPDX-License-Identifier: Apache-2.0
#include "models/layers/adamw.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "library/core/dispatch.hpp"
#include "models/layers/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/layers/adamw.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Headers that Highway compiles once per SIMD target must follow foreach_target.h.
#include "models/layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

template <typename T>
void adamw_range(T* w, T* m, T* v, const T* g, std::int64_t n, const AdamWOptions& o) {
  const Tag<T> d;
  const auto set = [&](double x) HWY_ATTR { return hn::Set(d, static_cast<T>(x)); };
  const auto t = static_cast<double>(o.step);
  const auto beta1 = set(o.beta1), rest1 = set(1.0 - o.beta1);
  const auto beta2 = set(o.beta2), rest2 = set(1.0 - o.beta2);
  const auto step = set(o.lr / (1.0 - std::pow(o.beta1, t)));
  const auto root_scale = set(1.0 / std::sqrt(1.0 - std::pow(o.beta2, t)));
  const auto eps = set(o.eps), keep = set(1.0 - o.lr * o.weight_decay), scale = set(o.gradient_scale);
  each_vector<T>(n, [&](std::int64_t i, auto lanes) HWY_ATTR {
    const auto gradient = hn::Mul(scale, lanes.load(g + i));
    const auto mean = hn::MulAdd(beta1, lanes.load(m + i), hn::Mul(rest1, gradient));
    const auto square = hn::MulAdd(beta2, lanes.load(v + i), hn::Mul(rest2, hn::Mul(gradient, gradient)));
    const auto root = hn::MulAdd(hn::Sqrt(square), root_scale, eps);
    lanes.store(mean, m + i);
    lanes.store(square, v + i);
    lanes.store(hn::NegMulAdd(step, hn::Div(mean, root), hn::Mul(keep, lanes.load(w + i))), w + i);
  });
}

/// Returns Σ x² of x(n), summed in f64.
template <typename T>
double squares_of(const T* x, std::int64_t n) {
  const Tag<double> d;
  const hn::Rebind<T, Tag<double>> narrow;
  constexpr auto kStep = static_cast<std::int64_t>(kLanes<double>);
  const auto wide = [&](const T* p) HWY_ATTR {
    if constexpr (sizeof(T) == sizeof(double)) {
      return hn::LoadU(d, p);
    } else {
      return hn::PromoteTo(d, hn::LoadU(narrow, p));
    }
  };
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 4 * kStep <= n; i += 4 * kStep) {
    const auto a = wide(x + i), b = wide(x + i + kStep), c = wide(x + i + 2 * kStep), e = wide(x + i + 3 * kStep);
    s0 = hn::MulAdd(a, a, s0);
    s1 = hn::MulAdd(b, b, s1);
    s2 = hn::MulAdd(c, c, s2);
    s3 = hn::MulAdd(e, e, s3);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

}  // namespace headgate::layers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate::layers {
namespace {

HEADGATE_TARGET_TABLE(adamw_range);
HEADGATE_TARGET_TABLE(squares_of);

}  // namespace

template <typename T>
void adamw_step(View<T, 1> w, View<T, 1> m, View<T, 1> v, ConstView<T, 1> g, const AdamWOptions& options,
                const ExecutionContext& context) {
  assert(w.dense() && m.dense() && v.dense() && g.dense());
  assert(m.shape == w.shape && v.shape == w.shape && g.shape == w.shape);
  const auto kernel = HEADGATE_FOR_TARGET(adamw_range, T, context.target);
  const Parts parts = parts_of(context, w.shape[0], 4, kFalseSharingElements<T>);
  for_parts(parts, [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    kernel(w.data + begin, m.data + begin, v.data + begin, g.data + begin, end - begin, options);
  });
}

template <typename T>
double squared_norm(const View<const T, 1>& x, const ExecutionContext& context) {
  // Sums blocks of fixed size, then adds the block sums in order, so that the result does not depend on the number of
  // threads. A block has 2·kMinimumWork numbers, because squaring and adding one number counts as half an elementwise
  // operation.
  constexpr std::int64_t kBlock = 2 * kMinimumWork;
  assert(x.dense());
  const auto kernel = HEADGATE_FOR_TARGET(squares_of, T, context.target);
  const std::int64_t n = x.shape[0], blocks = (n + kBlock - 1) / kBlock;
  auto* sums = scratch<double>(blocks);
  for_parts(parts_of(context, blocks, kMinimumWork), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) sums[b] = kernel(x.data + b * kBlock, std::min(kBlock, n - b * kBlock));
  });
  double total = 0.0;
  for (std::int64_t b = 0; b < blocks; ++b) total += sums[b];
  return total;
}

template void adamw_step(View<float, 1>, View<float, 1>, View<float, 1>, ConstView<float, 1>, const AdamWOptions&,
                         const ExecutionContext&);
template void adamw_step(View<double, 1>, View<double, 1>, View<double, 1>, ConstView<double, 1>, const AdamWOptions&,
                         const ExecutionContext&);
template double squared_norm(const View<const float, 1>&, const ExecutionContext&);
template double squared_norm(const View<const double, 1>&, const ExecutionContext&);

}  // namespace headgate::layers
#endif  // HWY_ONCE
