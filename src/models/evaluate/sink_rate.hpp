// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/evaluate/mean_by_head.hpp"
#include "models/evaluate/training_text.hpp"

namespace headgate::metrics {

inline constexpr Figure kSinkRate{
    .key = "sink_rate",
    .null_for_one_token = true,
    .is_share = true,
    .decimals = 3,
    .demo_decimals = 2,
    .meaning = "The share of heads that give more than 0.3 of their attention to the first token."};

/// Mean attention to token 0 above which a head counts as a sink head.
inline constexpr double kSinkThreshold = 0.3;

template <typename T>
class SinkRateSums : public Sums<T> {
 public:
  explicit SinkRateSums(const models::DecoderConfig& config) : heads_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    add_queries(heads_, sample, [&](std::int64_t h, std::int64_t n) { return sample.first_token_weights(h, n); });
  }
  Values of_layer(std::int64_t layer) const override {
    Mean share;
    for (std::int64_t h = 0; h < heads_.heads(layer); ++h) share.add(is_sink(layer, h));
    return {share.value()};
  }
  Values of_head(std::int64_t layer, std::int64_t head) const override { return {is_sink(layer, head)}; }

 private:
  double is_sink(std::int64_t layer, std::int64_t head) const {
    const double mean = heads_.at(layer, head).value();
    return one_if(mean > kSinkThreshold, mean);
  }

  MeanByHead heads_;
};

inline constexpr Metric kSinkRateMetric{
    .name = "sink_rate",
    .definition = "share of heads whose own `first_token_attention` exceeds 0.3; of a head 1 or 0",
    .figures = {&kSinkRate, 1},
    .layers = MetricLayers::first_token,
    .inputs = {Input::first_token_weights},
    .of_heads = true,
    .sums = kSumsOf<SinkRateSums>,
    .training_text = [](const FigureRow& row) { return text_of_figure(row, kSinkRate, ", sink rate {:.2f}"); },
};

}  // namespace headgate::metrics
