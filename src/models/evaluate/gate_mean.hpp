// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "models/evaluate/mean_by_head.hpp"

namespace headgate::metrics {

inline constexpr Figure kGateMean{
    .key = "gate_mean",
    .null_without_gate = true,
    .is_share = true,
    .decimals = 4,
    .demo_decimals = 3,
    .meaning = "The mean gate score over tokens, heads and features: how much of what heads read is let through."};

template <typename T>
class GateMeanSums : public Sums<T> {
 public:
  explicit GateMeanSums(const models::DecoderConfig& config) : mean_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    mean_.add(sample, [](double g) { return g; });
  }
  Values of_layer(std::int64_t layer) const override { return {mean_.of_layer(layer)}; }
  Values of_head(std::int64_t layer, std::int64_t head) const override { return {mean_.of_head(layer, head)}; }

 private:
  MeanByGate mean_;
};

inline constexpr Metric kGateMeanMetric{
    .name = "gate_mean",
    .definition = "mean of g(z) over all tokens, heads and features; null without a gate",
    .figures = {&kGateMean, 1},
    .layers = MetricLayers::attention,
    .inputs = {Input::gates},
    .of_heads = true,
    .sums = kSumsOf<GateMeanSums>,
    .training_text =
        [](const FigureRow& row) {
          const std::optional<double> mean = row.find(kGateMean);
          return mean ? fmt::format(", gate mean {:.3f}", *mean) : "";
        },
};

}  // namespace headgate::metrics
