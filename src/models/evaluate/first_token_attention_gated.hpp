// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/evaluate/mean_by_head.hpp"
#include "models/evaluate/passed_weight.hpp"

namespace headgate::metrics {

inline constexpr Figure kFirstTokenAttentionGated{
    .key = "first_token_attention_gated",
    .null_without_gate = true,
    .null_for_one_token = true,
    .is_share = true,
    .meaning =
        "What of the attention on the first token passes the gate: each weight times the gate of its query and head."};

template <typename T>
class FirstTokenAttentionGatedSums : public HeadMeanSums<T> {
 public:
  explicit FirstTokenAttentionGatedSums(const models::DecoderConfig& config)
      : HeadMeanSums<T>(config), passed_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    if (!passed_.defined()) return;
    add_queries(this->heads_, sample, [&](std::int64_t h, std::int64_t n) { return passed_.of(sample, h, n); });
  }

 private:
  PassedWeight<T> passed_;
};

inline constexpr Metric kFirstTokenAttentionGatedMetric{
    .name = "first_token_attention_gated",
    .definition =
        "`first_token_attention` that passes the gate: each weight times g(z) of its query and head, mean over "
        "features; null without a gate at g1 that multiplies",
    .figures = {&kFirstTokenAttentionGated, 1},
    .layers = MetricLayers::first_token,
    .inputs = {Input::first_token_weights, Input::gates},
    .of_heads = true,
    .sums = kSumsOf<FirstTokenAttentionGatedSums>,
};

}  // namespace headgate::metrics
