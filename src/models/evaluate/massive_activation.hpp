// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "models/evaluate/mean.hpp"
#include "models/evaluate/metric.hpp"
#include "models/evaluate/per_layer.hpp"
#include "models/layers/parallel.hpp"

namespace headgate::metrics {

inline constexpr Figure kMassiveActivation{
    .key = "massive_activation",
    .is_maximum = true,
    .decimals = 2,
    .demo_decimals = 2,
    .meaning =
        "The largest absolute value in the residual stream; sinks and massive activations usually come together."};

template <typename T>
class MassiveActivationSums : public Sums<T> {
 public:
  explicit MassiveActivationSums(const models::DecoderConfig& config) : layers_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    const View<const T, 1> x = sample.view.output.flat();
    const std::int64_t count = x.shape[0];
    double largest = 0.0;
#pragma omp declare reduction(larger:double : omp_out = larger(omp_out, omp_in)) initializer(omp_priv = 0.0)
#pragma omp parallel for schedule(static) reduction(larger : largest) num_threads(layers::team_size(sample.context))
    for (std::int64_t i = 0; i < count; ++i) largest = larger(largest, std::abs(static_cast<double>(x(i))));
    double& so_far = layers_.at(sample.view.layer);
    so_far = larger(so_far, largest);
  }
  Values of_layer(std::int64_t layer) const override { return {layers_.at(layer)}; }

 private:
  PerLayer<double> layers_;
};

inline constexpr Metric kMassiveActivationMetric{
    .name = "massive_activation",
    .definition = "largest absolute value in the residual stream after the layer; of the model, after any layer",
    .figures = {&kMassiveActivation, 1},
    .inputs = {Input::output},
    .sums = kSumsOf<MassiveActivationSums>,
    .training_text =
        [](const FigureRow& row) { return fmt::format(", massive activation {:.1f}", row.at(kMassiveActivation)); },
};

}  // namespace headgate::metrics
