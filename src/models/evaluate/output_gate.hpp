// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "models/evaluate/mean_by_head.hpp"

namespace headgate::metrics {

inline constexpr std::array<Figure, 3> kOutputGateFigures{{
    {.key = "output_gate_mean",
     .decimals = 4,
     .meaning = "The mean magnitude of the gate on the outputs of linear attention, SiLU, over tokens, value heads and "
                "features."},
    {.key = "output_gate_below_0.1",
     .is_share = true,
     .decimals = 4,
     .meaning = "The share of output gates of linear attention with a magnitude below 0.1: how sparse the gate is."},
    {.key = "output_gate_below_0.01",
     .is_share = true,
     .decimals = 4,
     .meaning = "The share of output gates of linear attention with a magnitude below 0.01: how often the gate is "
                "shut."},
}};
inline constexpr const Figure& kOutputGateMean = kOutputGateFigures[0];

template <typename T>
class OutputGateSums : public Sums<T> {
 public:
  explicit OutputGateSums(const models::DecoderConfig& config) : mean_(config), tenth_(config), hundredth_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    const View<const T, 3>& z = sample.view.gate;
    const std::int64_t layer = sample.view.layer;
    for (std::int64_t n = 0; n < z.shape[0]; ++n) {
      for (std::int64_t h = 0; h < z.shape[1]; ++h) {
        for (std::int64_t d = 0; d < z.shape[2]; ++d) {
          const double gate = silu_magnitude(static_cast<double>(z(n, h, d)));
          mean_.at(layer, h).add(gate);
          tenth_.at(layer, h).add(one_if(gate < 0.1, gate));
          hundredth_.at(layer, h).add(one_if(gate < 0.01, gate));
        }
      }
    }
  }
  Values of_layer(std::int64_t layer) const override {
    return {mean_.of_layer(layer).value(), tenth_.of_layer(layer).value(), hundredth_.of_layer(layer).value()};
  }
  Values of_head(std::int64_t layer, std::int64_t head) const override {
    return {mean_.at(layer, head).value(), tenth_.at(layer, head).value(), hundredth_.at(layer, head).value()};
  }

 private:
  MeanByHead mean_, tenth_, hundredth_;
};

inline constexpr Metric kOutputGate{
    .name = "output_gate",
    .definition =
        "of linear attention: mean of abs(silu(z)) of the output gate over tokens, value heads and features; share of "
        "them below it",
    .figures = kOutputGateFigures,
    .layers = MetricLayers::linear_attention,
    .inputs = {Input::output_gates},
    .of_heads = true,
    .sums = kSumsOf<OutputGateSums>,
};

}  // namespace headgate::metrics
