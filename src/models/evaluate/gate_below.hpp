// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>

#include "models/evaluate/mean_by_head.hpp"

namespace headgate::metrics {

inline constexpr std::array<Figure, 2> kGateBelowFigures{{
    {.key = "gate_below_0.1",
     .null_without_gate = true,
     .is_share = true,
     .decimals = 4,
     .demo_decimals = 3,
     .meaning = "The share of gate scores below 0.1: how sparse the gate is."},
    {.key = "gate_below_0.01",
     .null_without_gate = true,
     .is_share = true,
     .decimals = 4,
     .demo_decimals = 3,
     .meaning = "The share of gate scores below 0.01: how often the gate is shut."},
}};
inline constexpr const Figure& kGateBelowTenth = kGateBelowFigures[0];
inline constexpr const Figure& kGateBelowHundredth = kGateBelowFigures[1];

template <typename T>
class GateBelowSums : public Sums<T> {
 public:
  explicit GateBelowSums(const models::DecoderConfig& config) : tenth_(config), hundredth_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    tenth_.add(sample, [](double g) { return one_if(g < 0.1, g); });
    hundredth_.add(sample, [](double g) { return one_if(g < 0.01, g); });
  }
  Values of_layer(std::int64_t layer) const override { return {tenth_.of_layer(layer), hundredth_.of_layer(layer)}; }
  Values of_head(std::int64_t layer, std::int64_t head) const override {
    return {tenth_.of_head(layer, head), hundredth_.of_head(layer, head)};
  }

 private:
  MeanByGate tenth_, hundredth_;
};

inline constexpr Metric kGateBelow{
    .name = "gate_below",
    .definition = "share of g(z) below it; null without a gate",
    .figures = kGateBelowFigures,
    .layers = MetricLayers::attention,
    .inputs = {Input::gates},
    .of_heads = true,
    .sums = kSumsOf<GateBelowSums>,
    .training_text =
        [](const FigureRow& row) {
          const std::optional<double> tenth = row.find(kGateBelowTenth);
          return tenth ? fmt::format(" ({:.1f} % below 0.1)", 100.0 * *tenth) : "";
        },
};

}  // namespace headgate::metrics
