// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "models/evaluate/mean.hpp"
#include "models/evaluate/metric.hpp"
#include "models/layers/cross_entropy.hpp"

namespace headgate::metrics {

/// Mean loss of the predictions made at trigger tokens, whose next token is a copy (data/backcopy.hpp), and at other
/// tokens. loss_trigger is null for sequences of one token, because the only token is BOS.
inline constexpr std::array<Figure, 2> kLossByTriggerFigures{{
    {.key = "loss_trigger", .null_for_one_token = true, .decimals = 4, .demo_decimals = 4},
    {.key = "loss_other", .decimals = 4},
}};
inline constexpr const Figure& kLossTrigger = kLossByTriggerFigures[0];
inline constexpr const Figure& kLossOther = kLossByTriggerFigures[1];

template <typename T>
class LossByTriggerSums : public Sums<T> {
 public:
  explicit LossByTriggerSums(const models::DecoderConfig& /*config*/) {}

  void add_losses(const LossSample<T>& sample) override {
    for (std::int64_t n = 0; n < sample.tokens(); ++n) {
      if (sample.targets(n) == layers::kIgnoredTarget) continue;
      mean_.at(sample.triggers(n) != 0).add(static_cast<double>(sample.token_losses(n)));
    }
  }
  Values of_model() const override { return {mean_.trigger.maybe(), mean_.other.maybe()}; }

 private:
  MeanByTrigger mean_;
};

inline constexpr Metric kLossByTrigger{
    .name = "loss_by_trigger",
    .definition = "mean loss in nats, apart by whether the token is a trigger; position 0 is among the others",
    .figures = kLossByTriggerFigures,
    .scope = Scope::triggers,
    .inputs = {Input::token_losses},
    .sums = kSumsOf<LossByTriggerSums>,
};

}  // namespace headgate::metrics
