// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "metrics/mean_by_head.hpp"

namespace headgate::metrics {

inline constexpr Figure kAttentionEntropy{
    .key = "attention_entropy",
    .null_for_one_token = true,
    .column = {"entropy", 10, 3},
    .meaning = "How widely a query spreads its attention, in nats: 0 for one key alone, log n for n keys alike."};

template <typename T>
class AttentionEntropySums : public Sums<T> {
 public:
  explicit AttentionEntropySums(const models::DecoderConfig& config) : heads_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    add_queries(heads_, sample, [&](std::int64_t h, std::int64_t n) { return sample.entropies(h, n); });
  }
  Values of_layer(std::int64_t layer) const override { return {heads_.of_layer(layer).value()}; }
  Values of_head(std::int64_t layer, std::int64_t head) const override { return {heads_.at(layer, head).value()}; }

 private:
  MeanByHead heads_;
};

inline constexpr Metric kAttentionEntropyMetric{
    .name = "attention_entropy",
    .definition =
        "−Σ w log w of a query's softmax weights w, a sink's among them, in nats; mean over sequences, query heads and "
        "queries 1 … T−1",
    .figures = {&kAttentionEntropy, 1},
    .inputs = {Input::entropies},
    .of_heads = true,
    .sums = kSumsOf<AttentionEntropySums>,
    .by_default = false,
};

}  // namespace headgate::metrics
