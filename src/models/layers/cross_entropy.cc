// SPDX-License-Identifier: Apache-2.0
#include "models/layers/cross_entropy.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "library/core/dispatch.hpp"
#include "models/layers/parallel.hpp"

#ifndef HEADGATE_LAYERS_CROSS_ENTROPY_CALL_  // Highway compiles this file once per SIMD target
#define HEADGATE_LAYERS_CROSS_ENTROPY_CALL_
namespace headgate::layers {

template <typename T>
struct CrossEntropy {
  View<T, 1> losses;
  View<T, 2> dlogits;
  View<const T, 2> logits;
  View<const std::int32_t, 1> targets;
  T scale;  ///< factor that multiplies each row's gradient
};

}  // namespace headgate::layers
#endif  // HEADGATE_LAYERS_CROSS_ENTROPY_CALL_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/layers/cross_entropy.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Headers that Highway compiles once per SIMD target must follow foreach_target.h.
#include "models/layers/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::layers::HWY_NAMESPACE {

template <typename T>
T row_maximum(const T* x, std::int64_t V) {
  const Tag<T> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<T>::infinity());
  auto m0 = lowest, m1 = lowest;
  constexpr auto kStep = static_cast<std::int64_t>(kLanes<T>);
  std::int64_t j = 0;
  for (; j + 2 * kStep <= V; j += 2 * kStep) {
    m0 = hn::Max(m0, hn::LoadU(d, x + j));
    m1 = hn::Max(m1, hn::LoadU(d, x + j + kStep));
  }
  for (; j + kStep <= V; j += kStep) m0 = hn::Max(m0, hn::LoadU(d, x + j));
  T maximum = hn::GetLane(hn::MaxOfLanes(d, hn::Max(m0, m1)));
  for (; j < V; ++j) maximum = std::max(maximum, x[j]);
  return maximum;
}

/// Returns the loss of the row of logits x(V). If dx is not null, sets dx(V) = scale·(softmax(x) − onehot(target)). dx
/// may be x. NaN in x makes the result NaN: max() may drop NaN, but the sum of exponentials propagates it.
template <typename T>
T loss_row(T* dx, const T* x, std::int64_t target, std::int64_t V, T scale) {
  const Tag<T> d;
  const T maximum = row_maximum(x, V);
  const T chosen = x[target];
  const auto shift = hn::Set(d, maximum);
  const T sum = sum_vectors<T>(V, [&](std::int64_t j, auto lanes) HWY_ATTR {
    const auto e = lanes.keep(exp_fast(d, hn::Sub(lanes.load(x + j), shift)));
    if (dx != nullptr) lanes.store(e, dx + j);
    return e;
  });
  if (dx != nullptr) {
    const auto factor = hn::Set(d, scale / sum);
    each_vector<T>(
        V, [&](std::int64_t j, auto lanes) HWY_ATTR { lanes.store(hn::Mul(lanes.load(dx + j), factor), dx + j); });
    dx[target] -= scale;
  }
  return std::log(sum) + (maximum - chosen);
}

/// Computes the losses of rows [begin, end) and returns their sum.
template <typename T>
double loss_rows(const CrossEntropy<T>& call, std::int64_t begin, std::int64_t end) {
  const std::int64_t V = call.logits.shape[1];
  double total = 0.0;
  for (std::int64_t n = begin; n < end; ++n) {
    T* dx = call.dlogits.present() ? call.dlogits.at(n) : nullptr;
    const std::int32_t target = call.targets(n);
    T loss = T{0};
    if (target != kIgnoredTarget) {
      loss = loss_row(dx, call.logits.at(n), target, V, call.scale);
    } else if (dx != nullptr) {
      std::fill(dx, dx + V, T{0});
    }
    if (call.losses.present()) call.losses(n) = loss;
    total += static_cast<double>(loss);
  }
  return total;
}

}  // namespace headgate::layers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headgate::layers {
namespace {

HEADGATE_TARGET_TABLE(loss_rows);

}  // namespace

template <typename T>
double cross_entropy(View<T, 1> losses, View<T, 2> dlogits, ConstView<T, 2> logits, ConstView<std::int32_t, 1> targets,
                     double gradient_scale, const ExecutionContext& context) {
  const std::int64_t N = logits.shape[0], V = logits.shape[1];
  assert(targets.shape[0] == N && has_whole_rows(targets) && has_whole_rows(logits));
  assert(!losses.present() || losses.shape[0] == N);
  assert(!dlogits.present() || (dlogits.shape == logits.shape && has_whole_rows(dlogits)));
  const std::int64_t counted = N - std::count(targets.data, targets.data + N, kIgnoredTarget);
  const double divisor = static_cast<double>(std::max<std::int64_t>(counted, 1));
  const auto kernel = HEADGATE_FOR_TARGET(loss_rows, T, context.target);
  const CrossEntropy<T> call{losses, dlogits, logits, targets, static_cast<T>(gradient_scale / divisor)};
  const Parts parts = parts_of(context, N, 4 * V);
  auto* totals = scratch<double>(parts.count);
  for_parts(parts,
            [&](std::int64_t part, std::int64_t begin, std::int64_t end) { totals[part] = kernel(call, begin, end); });
  double total = 0.0;
  for (std::int64_t part = 0; part < parts.count; ++part) total += totals[part];
  return total / divisor;
}

template double cross_entropy(View<float, 1>, View<float, 2>, ConstView<float, 2>, ConstView<std::int32_t, 1>, double,
                              const ExecutionContext&);
template double cross_entropy(View<double, 1>, View<double, 2>, ConstView<double, 2>, ConstView<std::int32_t, 1>,
                              double, const ExecutionContext&);

}  // namespace headgate::layers
#endif  // HWY_ONCE
