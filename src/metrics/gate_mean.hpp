// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "metrics/mean.hpp"
#include "metrics/metric.hpp"
#include "metrics/per_layer.hpp"

namespace headgate::metrics {

inline constexpr Figure kGateMean{
    .key = "gate_mean", .null_without_gate = true, .column = {"gate", 8, 4}, .demo = {"gate", "mean", 3}};

template <typename T>
class GateMeanSums : public Sums<T> {
 public:
  explicit GateMeanSums(const models::DecoderConfig& config) : layers_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    Mean& mean = layers_.at(sample.view.layer);
    const View<const T, 1> gates = sample.gates.flat();
    for (std::int64_t i = 0; i < gates.shape[0]; ++i) mean.add(static_cast<double>(gates(i)));
  }
  Values of_layer(std::int64_t layer) const override { return {layers_.at(layer).maybe()}; }

 private:
  PerLayer<Mean> layers_;
};

inline constexpr Metric kGateMeanMetric{
    .name = "gate_mean",
    .definition = "mean of g(z) over all tokens, heads and features; null without a gate",
    .figures = {&kGateMean, 1},
    .inputs = {Input::gates},
    .sums = kSumsOf<GateMeanSums>,
    .training_text =
        [](const FigureRow& row) {
          const std::optional<double> mean = row.find(kGateMean);
          return mean ? fmt::format(", gate {:.3f}", *mean) : "";
        },
};

}  // namespace headgate::metrics
