// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/evaluate/metric.hpp"
#include "models/layers/gate_variant.hpp"

namespace headgate::metrics {

/// Computes how much attention to token 0 passes the gate: the softmax weight times the mean of g(z) over the head's
/// features. Defined only for gates that multiply the attention output.
template <typename T>
class PassedWeight {
 public:
  explicit PassedWeight(const models::DecoderConfig& config)
      : defined_(layers::gates_attention(config.gate) && config.gate.op == GateOp::mul),
        shared_(layers::shares_gate(config.gate)) {}

  bool defined() const { return defined_; }

  /// Returns the attention weight on token 0 that passes the gate, for query head h at token n.
  double of(const LayerSample<T>& sample, std::int64_t h, std::int64_t n) const {
    const std::int64_t heads = shared_ ? 1 : sample.first_token_weights.shape[0];
    const std::int64_t features = sample.gates.shape[1] / heads;
    const std::int64_t first = shared_ ? 0 : h * features;
    double sum = 0.0;
    for (std::int64_t x = 0; x < features; ++x) sum += static_cast<double>(sample.gates(n, first + x));
    return sample.first_token_weights(h, n) * sum / static_cast<double>(features);
  }

 private:
  bool defined_, shared_;
};

}  // namespace headgate::metrics
