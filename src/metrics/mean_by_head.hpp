// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "metrics/mean.hpp"
#include "metrics/metric.hpp"
#include "metrics/per_layer.hpp"

namespace headgate::metrics {

/// The attention on token 0 of each head of each layer, mean over sequences and queries 1 … T−1.
template <typename T>
class MeanByHead {
 public:
  explicit MeanByHead(const models::DecoderConfig& config)
      : layers_(config, std::vector<Mean>(static_cast<std::size_t>(config.heads))) {}

  void add(const LayerSample<T>& sample) {
    const std::int64_t N = sample.tokens();
    for (std::int64_t h = 0; h < sample.first_token_weights.shape[0]; ++h) {
      Mean& head = layers_.at(sample.view.layer)[static_cast<std::size_t>(h)];
      for (std::int64_t n = 0; n < N; ++n) {
        if (sample.position(n) != 0) head.add(sample.first_token_weights(h, n));
      }
    }
  }
  const std::vector<Mean>& of_layer(std::int64_t layer) const { return layers_.at(layer); }

 private:
  PerLayer<std::vector<Mean>> layers_;
};

}  // namespace headgate::metrics
