// SPDX-License-Identifier: Apache-2.0
#include "models/evaluate/counted_cross_entropy.hpp"

#include <algorithm>
#include <cmath>

#include "models/layers/cross_entropy.hpp"

// Replaces models/layers/cross_entropy.cc, which the linker then leaves in its archive. Every pass through the
// vocabulary head calls this, which counts it.

namespace headgate {

namespace {

std::int64_t g_rows = 0;

}  // namespace

std::int64_t metrics::rows_of_logits() { return g_rows; }

namespace layers {

template <typename T>
double cross_entropy(View<T, 1> losses, View<T, 2> /*dlogits*/, ConstView<T, 2> logits,
                     ConstView<std::int32_t, 1> targets, double /*gradient_scale*/,
                     const ExecutionContext& /*context*/) {
  const auto [N, V] = logits.shape;
  g_rows += N;
  double sum = 0.0, counted = 0.0;
  for (std::int64_t n = 0; n < N; ++n) {
    double exponentials = 0.0;
    for (std::int64_t v = 0; v < V; ++v) exponentials += std::exp(static_cast<double>(logits(n, v)));
    const bool counts = targets(n) != kIgnoredTarget;
    const double loss = counts ? std::log(exponentials) - static_cast<double>(logits(n, targets(n))) : 0.0;
    if (losses.present()) losses(n) = static_cast<T>(loss);
    sum += loss;
    counted += counts ? 1.0 : 0.0;
  }
  return sum / std::max(1.0, counted);
}

template double cross_entropy(View<float, 1>, View<float, 2>, ConstView<float, 2>, ConstView<std::int32_t, 1>, double,
                              const ExecutionContext&);
template double cross_entropy(View<double, 1>, View<double, 2>, ConstView<double, 2>, ConstView<std::int32_t, 1>,
                              double, const ExecutionContext&);

}  // namespace layers

}  // namespace headgate
