// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "models/evaluate/mean_by_head.hpp"

namespace headgate::metrics {

inline constexpr Figure kSinkAttention{
    .key = "sink_attention",
    .null_for_one_token = true,
    .is_share = true,
    .decimals = 4,
    .meaning = "The share of attention that later tokens give to the sink logit of the head, and so to no token."};

template <typename T>
class SinkAttentionSums : public HeadMeanSums<T> {
 public:
  using HeadMeanSums<T>::HeadMeanSums;

  void add_layer(const LayerSample<T>& sample) override {
    const models::LayerView<T>& view = sample.view;
    if (!view.sinks.present()) return;
    const std::int64_t seq = view.shape.seq;
    add_queries(this->heads_, sample, [&](std::int64_t h, std::int64_t n) {
      return std::exp(static_cast<double>(view.sinks(h)) - static_cast<double>(view.lse(n / seq, h, n % seq)));
    });
  }
};

inline constexpr Metric kSinkAttentionMetric{
    .name = "sink_attention",
    .definition =
        "softmax weight on the sink logit of the head, mean over sequences, query heads and queries 1 … T−1; null "
        "without sinks",
    .figures = {&kSinkAttention, 1},
    .layers = MetricLayers::attention,
    .inputs = {Input::sink_weights},
    .of_heads = true,
    .sums = kSumsOf<SinkAttentionSums>,
    .by_default = false,
};

}  // namespace headgate::metrics
