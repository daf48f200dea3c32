// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "models/evaluate/mean.hpp"
#include "models/evaluate/metric.hpp"

namespace headgate::metrics {

inline constexpr std::array<Figure, 2> kGateByTriggerFigures{{
    {.key = "gate_trigger", .null_without_gate = true, .is_share = true, .decimals = 4, .demo_decimals = 3},
    {.key = "gate_other", .null_without_gate = true, .is_share = true, .decimals = 4, .demo_decimals = 3},
}};
inline constexpr const Figure& kGateTrigger = kGateByTriggerFigures[0];
inline constexpr const Figure& kGateOther = kGateByTriggerFigures[1];

template <typename T>
class GateByTriggerSums : public Sums<T> {
 public:
  explicit GateByTriggerSums(const models::DecoderConfig& /*config*/) {}

  void add_layer(const LayerSample<T>& sample) override {
    const std::int64_t N = sample.gates.shape[0], W = sample.gates.shape[1];
    for (std::int64_t n = 0; n < N; ++n) {
      if (sample.position(n) == 0) continue;
      Mean& mean = mean_.at(sample.is_trigger(n));
      for (std::int64_t w = 0; w < W; ++w) mean.add(static_cast<double>(sample.gates(n, w)));
    }
  }
  Values of_model() const override { return {mean_.trigger.maybe(), mean_.other.maybe()}; }

 private:
  MeanByTrigger mean_;
};

inline constexpr Metric kGateByTrigger{
    .name = "gate_by_trigger",
    .definition =
        "g(z), apart by whether the query's token is a trigger: mean over layers, heads, features and "
        "positions 1 … T−1; null without a gate",
    .figures = kGateByTriggerFigures,
    .scope = Scope::triggers,
    .layers = MetricLayers::attention,
    .inputs = {Input::gates},
    .sums = kSumsOf<GateByTriggerSums>,
};

}  // namespace headgate::metrics
