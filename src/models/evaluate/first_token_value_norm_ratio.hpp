// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/evaluate/mean.hpp"
#include "models/evaluate/metric.hpp"

namespace headgate::metrics {

inline constexpr Figure kFirstTokenValueNormRatio{
    .key = "first_token_value_norm_ratio", .null_for_one_token = true, .decimals = 4, .demo_decimals = 3};

template <typename T>
class FirstTokenValueNormRatioSums : public Sums<T> {
 public:
  explicit FirstTokenValueNormRatioSums(const models::DecoderConfig& /*config*/) {}

  void add_layer(const LayerSample<T>& sample) override {
    const std::int64_t B = sample.view.shape.batch, seq = sample.view.shape.seq, H = sample.view.v.shape[1];
    if (sample.view.first_position == 0) norms_.assign(static_cast<std::size_t>(B * H), {});
    for (std::int64_t n = 0; n < B * seq; ++n) {
      for (std::int64_t h = 0; h < H; ++h) {
        Norms& norms = norms_[static_cast<std::size_t>(n / seq * H + h)];
        const double here = norm(sample.view.v[n][h]);
        if (sample.position(n) == 0) {
          norms.first = here;
        } else {
          norms.others.add(here);
        }
      }
    }
    if (!sample.view.ends_sequence()) return;
    for (const Norms& norms : norms_) {
      if (norms.others.sum != 0.0) ratio_.add(norms.first / norms.others.value());
    }
  }
  Values of_model() const override { return {ratio_.maybe()}; }

 private:
  static double norm(const View<const T, 1>& v) {
    double sum = 0.0;
    for (std::int64_t d = 0; d < v.shape[0]; ++d) sum += static_cast<double>(v(d)) * static_cast<double>(v(d));
    return std::sqrt(sum);
  }

  struct Norms {
    double first = 0.0;
    Mean others;
  };

  Mean ratio_;
  // (B,H) L2 norms of value vectors: the first token's norm, and the running mean of the later tokens' norms.
  std::vector<Norms> norms_;
};

inline constexpr Metric kFirstTokenValueNormRatioMetric{
    .name = "first_token_value_norm_ratio",
    .definition =
        "‖v₀‖ over the mean of ‖v_j‖, j ≥ 1, v as the weighted sum sees it (after a gate at g2): mean over "
        "sequences, layers and key/value heads",
    .figures = {&kFirstTokenValueNormRatio, 1},
    .scope = Scope::triggers,
    .layers = MetricLayers::attention,
    .inputs = {Input::values},
    .sums = kSumsOf<FirstTokenValueNormRatioSums>,
};

}  // namespace headgate::metrics
