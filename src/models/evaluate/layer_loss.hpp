// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/evaluate/loss.hpp"
#include "models/evaluate/per_layer.hpp"

namespace headgate::metrics {

template <typename T>
class LayerLossSums : public Sums<T> {
 public:
  explicit LayerLossSums(const models::DecoderConfig& config) : layers_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    const auto counted = static_cast<double>(sample.counted_targets);
    layers_.at(sample.view.layer).add(sample.view.exit_loss.value() * counted, counted);
  }
  Values of_layer(std::int64_t layer) const override { return loss_values(layers_.at(layer).value()); }

 private:
  PerLayer<Mean> layers_;
};

inline constexpr Metric kLayerLoss{
    .name = "layer_loss",
    .definition =
        "of a layer: the loss of the model that ends after it, last norm and logits applied to its output "
        "(the logit lens), in the same units. It costs a pass through the head of the vocabulary for each "
        "layer",
    .figures = kLossFigures,
    .scope = Scope::layers,
    .inputs = {Input::exit_loss},
    .sums = kSumsOf<LayerLossSums>,
    .by_default = false,
};

}  // namespace headgate::metrics
