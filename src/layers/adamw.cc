// SPDX-License-Identifier: Apache-2.0
#include "layers/adamw.hpp"

#include <algorithm>
#include <cmath>

#include "core/dispatch.hpp"
#include "headgate/runtime.hpp"
#include "layers/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layers/adamw.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h: per-target headers.
#include "layers/rows-inl.hpp"

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

/// Σ x² of a block, in f64.
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
void adamw_step(T* w, T* m, T* v, const T* g, std::int64_t n, const AdamWOptions& options) {
  const auto kernel = HEADGATE_FOR_TARGET(adamw_range, T, active_target_bit());
  for_parts(parts_of(n, 4, kApart<T>), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    kernel(w + begin, m + begin, v + begin, g + begin, end - begin, options);
  });
}

template <typename T>
double squared_norm(const T* x, std::int64_t n) {
  // Blocks whose bounds know nothing of threads, added in order. A block is work enough for a part: a square and its
  // sum, of one number read, are half an operation.
  constexpr std::int64_t kBlock = 2 * kMinimumWork;
  const auto kernel = HEADGATE_FOR_TARGET(squares_of, T, active_target_bit());
  const std::int64_t blocks = (n + kBlock - 1) / kBlock;
  auto* sums = scratch<double>(blocks);
  for_parts(parts_of(blocks, kMinimumWork), [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) sums[b] = kernel(x + b * kBlock, std::min(kBlock, n - b * kBlock));
  });
  double total = 0.0;
  for (std::int64_t b = 0; b < blocks; ++b) total += sums[b];
  return total;
}

template void adamw_step(float*, float*, float*, const float*, std::int64_t, const AdamWOptions&);
template void adamw_step(double*, double*, double*, const double*, std::int64_t, const AdamWOptions&);
template double squared_norm(const float*, std::int64_t);
template double squared_norm(const double*, std::int64_t);

}  // namespace headgate::layers
#endif  // HWY_ONCE
