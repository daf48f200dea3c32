// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>

#include "metrics/mean.hpp"
#include "metrics/metric.hpp"
#include "metrics/per_layer.hpp"

namespace headgate::metrics {

inline constexpr std::array<Figure, 2> kGateBelowFigures{{
    {.key = "gate_below_0.1", .null_without_gate = true, .column = {"<0.1", 8, 4}, .demo = {"gate", "<0.1", 3}},
    {.key = "gate_below_0.01", .null_without_gate = true, .column = {"<0.01", 8, 4}, .demo = {"gate", "<0.01", 3}},
}};
inline constexpr const Figure& kGateBelowTenth = kGateBelowFigures[0];
inline constexpr const Figure& kGateBelowHundredth = kGateBelowFigures[1];

template <typename T>
class GateBelowSums : public Sums<T> {
 public:
  explicit GateBelowSums(const models::DecoderConfig& config) : layers_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    Shares& shares = layers_.at(sample.view.layer);
    const View<const T, 1> gates = sample.gates.flat();
    for (std::int64_t i = 0; i < gates.shape[0]; ++i) {
      const auto g = static_cast<double>(gates(i));
      shares.tenth.add(one_if(g < 0.1, g));
      shares.hundredth.add(one_if(g < 0.01, g));
    }
  }
  Values of_layer(std::int64_t layer) const override {
    const Shares& shares = layers_.at(layer);
    return {shares.tenth.maybe(), shares.hundredth.maybe()};
  }

 private:
  struct Shares {
    Mean tenth, hundredth;
  };
  PerLayer<Shares> layers_;
};

inline constexpr Metric kGateBelow{
    .name = "gate_below",
    .definition = "share of g(z) below it; null without a gate",
    .figures = kGateBelowFigures,
    .inputs = {Input::gates},
    .sums = kSumsOf<GateBelowSums>,
    .training_text =
        [](const FigureRow& row) {
          const std::optional<double> tenth = row.find(kGateBelowTenth);
          return tenth ? fmt::format(" ({:.1f} % below 0.1)", 100.0 * *tenth) : "";
        },
};

}  // namespace headgate::metrics
