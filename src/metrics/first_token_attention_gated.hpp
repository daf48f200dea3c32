// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "metrics/mean.hpp"
#include "metrics/passed_weight.hpp"
#include "metrics/per_layer.hpp"

namespace headgate::metrics {

inline constexpr Figure kFirstTokenAttentionGated{
    .key = "first_token_attention_gated", .null_without_gate = true, .null_for_one_token = true};

template <typename T>
class FirstTokenAttentionGatedSums : public Sums<T> {
 public:
  explicit FirstTokenAttentionGatedSums(const models::DecoderConfig& config) : passed_(config), layers_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    if (!passed_.defined()) return;
    Mean& mean = layers_.at(sample.view.layer);
    for (std::int64_t h = 0; h < sample.first_token_weights.shape[0]; ++h) {
      for (std::int64_t n = 0; n < sample.tokens(); ++n) {
        if (sample.position(n) != 0) mean.add(passed_.of(sample, h, n));
      }
    }
  }
  Values of_layer(std::int64_t layer) const override { return {layers_.at(layer).maybe()}; }

 private:
  PassedWeight<T> passed_;
  PerLayer<Mean> layers_;
};

inline constexpr Metric kFirstTokenAttentionGatedMetric{
    .name = "first_token_attention_gated",
    .definition =
        "`first_token_attention` that passes the gate: each weight times g(z) of its query and head, mean over "
        "features; null without a gate at g1 that multiplies",
    .figures = {&kFirstTokenAttentionGated, 1},
    .inputs = {Input::first_token_weights, Input::gates},
    .sums = kSumsOf<FirstTokenAttentionGatedSums>,
};

}  // namespace headgate::metrics
