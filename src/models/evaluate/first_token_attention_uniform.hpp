// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "models/evaluate/mean.hpp"
#include "models/evaluate/metric.hpp"
#include "models/evaluate/per_layer.hpp"
#include "models/evaluate/training_text.hpp"

namespace headgate::metrics {

inline constexpr Figure kFirstTokenAttentionUniform{
    .key = "first_token_attention_uniform",
    .null_for_one_token = true,
    .is_share = true,
    .decimals = 4,
    .demo_decimals = 4,
    .meaning =
        "What the first token would get from uniform attention over the visible keys: the value to compare with."};

template <typename T>
class FirstTokenAttentionUniformSums : public Sums<T> {
 public:
  explicit FirstTokenAttentionUniformSums(const models::DecoderConfig& config) : layers_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    const auto B = static_cast<double>(sample.view.shape.batch);
    Mean& mean = layers_.at(sample.view.layer);
    const std::int64_t first = sample.view.first_position, end = first + sample.view.shape.seq;
    for (std::int64_t t = std::max<std::int64_t>(1, first); t < end; ++t) mean.add(B / static_cast<double>(t + 1), B);
  }
  Values of_layer(std::int64_t layer) const override { return {layers_.at(layer).value()}; }

 private:
  PerLayer<Mean> layers_;
};

inline constexpr Metric kFirstTokenAttentionUniformMetric{
    .name = "first_token_attention_uniform",
    .definition =
        "mean over queries t = 1 … T−1 of 1/(t + 1): `first_token_attention` if every query looked alike at "
        "all it sees",
    .figures = {&kFirstTokenAttentionUniform, 1},
    .layers = MetricLayers::first_token,
    .sums = kSumsOf<FirstTokenAttentionUniformSums>,
    .training_text =
        [](const FigureRow& row) { return text_of_figure(row, kFirstTokenAttentionUniform, " (uniform {:.3f})"); },
};

}  // namespace headgate::metrics
