// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/evaluate/mean.hpp"
#include "models/evaluate/passed_weight.hpp"

namespace headgate::metrics {

inline constexpr Figure kFirstTokenAttentionGatedOther{.key = "first_token_attention_gated_other",
                                                       .null_without_gate = true,
                                                       .null_for_one_token = true,
                                                       .is_share = true,
                                                       .decimals = 4,
                                                       .demo_decimals = 3};

template <typename T>
class FirstTokenAttentionGatedByTriggerSums : public Sums<T> {
 public:
  explicit FirstTokenAttentionGatedByTriggerSums(const models::DecoderConfig& config) : passed_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    if (!passed_.defined()) return;
    for (std::int64_t h = 0; h < sample.first_token_weights.shape[0]; ++h) {
      for (std::int64_t n = 0; n < sample.tokens(); ++n) {
        if (sample.position(n) != 0 && !sample.is_trigger(n)) mean_.add(passed_.of(sample, h, n));
      }
    }
  }
  Values of_model() const override { return {mean_.maybe()}; }

 private:
  PassedWeight<T> passed_;
  Mean mean_;
};

inline constexpr Metric kFirstTokenAttentionGatedByTrigger{
    .name = "first_token_attention_gated_by_trigger",
    .definition =
        "`first_token_attention_other` that passes the gate: each weight times g(z) of its query and head, mean over "
        "features; "
        "null without a gate at g1 that multiplies",
    .figures = {&kFirstTokenAttentionGatedOther, 1},
    .scope = Scope::triggers,
    .layers = MetricLayers::first_token,
    .inputs = {Input::first_token_weights, Input::gates},
    .sums = kSumsOf<FirstTokenAttentionGatedByTriggerSums>,
};

}  // namespace headgate::metrics
