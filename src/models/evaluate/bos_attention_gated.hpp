// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/evaluate/mean.hpp"
#include "models/evaluate/passed_weight.hpp"

namespace headgate::metrics {

inline constexpr Figure kBosAttentionOtherGated{.key = "bos_attention_other_gated",
                                                .null_without_gate = true,
                                                .null_for_one_token = true,
                                                .is_share = true,
                                                .column = {"gate", 17, 4},
                                                .demo = {"passes", "the gate", 3}};

template <typename T>
class BosAttentionGatedSums : public Sums<T> {
 public:
  explicit BosAttentionGatedSums(const models::DecoderConfig& config) : passed_(config) {}

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

inline constexpr Metric kBosAttentionGated{
    .name = "bos_attention_gated",
    .definition =
        "`bos_attention_other` that passes the gate: each weight times g(z) of its query and head, mean over features; "
        "null without a gate at g1 that multiplies",
    .figures = {&kBosAttentionOtherGated, 1},
    .scope = Scope::triggers,
    .layers = MetricLayers::first_token,
    .inputs = {Input::first_token_weights, Input::gates},
    .sums = kSumsOf<BosAttentionGatedSums>,
    .heads = {.one_model = "attention to BOS that passes the gate, other position",
              .compared = "BOS past",
              .indent = 9},
};

}  // namespace headgate::metrics
