// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>

#include "models/evaluate/mean.hpp"
#include "models/evaluate/metric.hpp"
#include "models/evaluate/per_layer.hpp"
#include "models/evaluate/token_ranges.hpp"

namespace headgate::metrics {

inline constexpr std::array<Figure, 3> kMassiveActivationFigures{{
    {.key = "massive_activation",
     .over_layers = OverLayers::maximum,
     .decimals = 2,
     .demo_decimals = 2,
     .meaning =
         "The largest absolute value in the residual stream; sinks and massive activations usually come together."},
    {.key = "massive_activation_token",
     .over_layers = OverLayers::of_the_maximum,
     .is_index = true,
     .decimals = 0,
     .meaning = "The position in its sequence of the token that holds the largest activation, from 0 on."},
    {.key = "massive_activation_channel",
     .over_layers = OverLayers::of_the_maximum,
     .is_index = true,
     .decimals = 0,
     .meaning = "The channel of the residual stream that holds the largest activation, from 0 on."},
}};
inline constexpr const Figure& kMassiveActivation = kMassiveActivationFigures[0];

/// The entry of the residual stream with the largest absolute value so far, its token position and its channel. NaN
/// counts as largest. Among equal entries, the first is kept.
struct LargestEntry {
  double size = 0.0;
  std::int64_t token = 0, channel = 0;

  void join(const LargestEntry& other) {
    if (exceeds(other.size, size)) *this = other;
  }
};

template <typename T>
class MassiveActivationSums : public Sums<T> {
 public:
  explicit MassiveActivationSums(const models::DecoderConfig& config) : layers_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    const auto find = [](LargestEntry& largest, double x, std::int64_t token, std::int64_t channel) {
      largest.join({std::abs(x), token, channel});
    };
    layers_.at(sample.view.layer).join(over_stream<LargestEntry>(sample, find));
  }
  Values of_layer(std::int64_t layer) const override {
    const LargestEntry& largest = layers_.at(layer);
    return {largest.size, static_cast<double>(largest.token), static_cast<double>(largest.channel)};
  }

 private:
  PerLayer<LargestEntry> layers_;
};

inline constexpr Metric kMassiveActivationMetric{
    .name = "massive_activation",
    .definition =
        "largest absolute value in the residual stream after the layer, with its token's position in the sequence and "
        "its channel. The model has the largest of its layers",
    .figures = kMassiveActivationFigures,
    .inputs = {Input::output},
    .sums = kSumsOf<MassiveActivationSums>,
    .training_text =
        [](const FigureRow& row) { return fmt::format(", massive activation {:.1f}", row.at(kMassiveActivation)); },
};

}  // namespace headgate::metrics
