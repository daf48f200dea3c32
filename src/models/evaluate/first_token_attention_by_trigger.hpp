// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "models/evaluate/mean.hpp"
#include "models/evaluate/metric.hpp"
#include "models/evaluate/training_text.hpp"

namespace headgate::metrics {

inline constexpr std::array<Figure, 2> kFirstTokenAttentionByTriggerFigures{{
    {.key = "first_token_attention_trigger", .null_for_one_token = true, .is_share = true, .decimals = 4},
    {.key = "first_token_attention_other",
     .null_for_one_token = true,
     .is_share = true,
     .decimals = 4,
     .demo_decimals = 3},
}};
inline constexpr const Figure& kFirstTokenAttentionTrigger = kFirstTokenAttentionByTriggerFigures[0];
inline constexpr const Figure& kFirstTokenAttentionOther = kFirstTokenAttentionByTriggerFigures[1];

template <typename T>
class FirstTokenAttentionByTriggerSums : public Sums<T> {
 public:
  explicit FirstTokenAttentionByTriggerSums(const models::DecoderConfig& /*config*/) {}

  void add_layer(const LayerSample<T>& sample) override {
    const std::int64_t N = sample.tokens();
    for (std::int64_t h = 0; h < sample.first_token_weights.shape[0]; ++h) {
      for (std::int64_t n = 0; n < N; ++n) {
        if (sample.position(n) != 0) mean_.at(sample.is_trigger(n)).add(sample.first_token_weights(h, n));
      }
    }
  }
  Values of_model() const override { return {mean_.trigger.maybe(), mean_.other.maybe()}; }

 private:
  MeanByTrigger mean_;
};

inline constexpr Metric kFirstTokenAttentionByTrigger{
    .name = "first_token_attention_by_trigger",
    .definition =
        "softmax weight on token 0, BOS, apart by whether the query's token is a trigger: mean over layers, "
        "heads and queries 1 … T−1",
    .figures = kFirstTokenAttentionByTriggerFigures,
    .scope = Scope::triggers,
    .layers = MetricLayers::first_token,
    .inputs = {Input::first_token_weights},
    .sums = kSumsOf<FirstTokenAttentionByTriggerSums>,
    .training_text =
        [](const FigureRow& row) {
          return text_of_figure(row, kFirstTokenAttentionOther, "; first-token attention {:.3f} at other tokens") +
                 text_of_figure(row, kFirstTokenAttentionTrigger, ", {:.3f} at triggers");
        },
};

}  // namespace headgate::metrics
