// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "models/evaluate/mean.hpp"
#include "models/evaluate/metric.hpp"

namespace headgate::metrics {

inline constexpr Figure kBosValueNormRatio{.key = "bos_value_norm_ratio",
                                           .null_for_one_token = true,
                                           .column = {"norm", 10, 4},
                                           .demo = {"norm of", "BOS value", 3}};

template <typename T>
class BosValueNormRatioSums : public Sums<T> {
 public:
  explicit BosValueNormRatioSums(const models::DecoderConfig& /*config*/) {}

  void add_layer(const LayerSample<T>& sample) override {
    const std::int64_t seq = sample.view.shape.seq;
    if (seq < 2) return;
    for (std::int64_t b = 0; b < sample.view.shape.batch; ++b) {
      for (std::int64_t h = 0; h < sample.view.v.shape[1]; ++h) {
        Mean others;
        for (std::int64_t t = 1; t < seq; ++t) others.add(norm(sample.view.v[b * seq + t][h]));
        if (others.sum != 0.0) ratio_.add(norm(sample.view.v[b * seq][h]) / others.value());
      }
    }
  }
  Values of_model() const override { return {ratio_.value()}; }

 private:
  static double norm(const View<const T, 1>& v) {
    double sum = 0.0;
    for (std::int64_t d = 0; d < v.shape[0]; ++d) sum += static_cast<double>(v(d)) * static_cast<double>(v(d));
    return std::sqrt(sum);
  }

  Mean ratio_;
};

inline constexpr Metric kBosValueNormRatioMetric{
    .name = "bos_value_norm_ratio",
    .definition =
        "‖v₀‖ over the mean of ‖v_j‖, j ≥ 1, v as the weighted sum sees it (after a gate at g2): mean over "
        "sequences, layers and key/value heads",
    .figures = {&kBosValueNormRatio, 1},
    .scope = Scope::triggers,
    .layers = MetricLayers::attention,
    .inputs = {Input::values},
    .sums = kSumsOf<BosValueNormRatioSums>,
    .heads = {.one_model = "norm of the BOS value over the others'", .compared = "BOS value", .indent = 7},
};

}  // namespace headgate::metrics
