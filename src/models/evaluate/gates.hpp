// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/runtime.hpp"
#include "models/decoder/decoder.hpp"

// Computes a layer's gates g(z), after the gate function. If all heads share one gate, the result is the mean of g(z)
// over heads.

namespace headgate::metrics {

/// Returns the number of gates per token in an attention layer. Returns 0 without a gate and for linear attention.
std::int64_t gate_width(const models::DecoderConfig& config, std::int64_t layer);
/// Returns the largest gate_width() of any layer.
std::int64_t most_gates(const models::DecoderConfig& config);

/// Returns how many heads of a layer have gates of their own:
/// - the number of key/value heads, if the gate is on keys or values
/// - the number of query heads, if the gate is on queries or the attention output
/// - 0 without a gate, if all heads share one gate, or if the gate is on the layer's output
/// - 0 for linear attention
std::int64_t gate_owners(const models::DecoderConfig& config, std::int64_t layer);

/// Computes out(N,gate_width) = g(z), the gates of a layer of softmax attention. The model must have a gate. The
/// observer that received `view` must have requested Tap::gate_logits.
template <typename T>
void gate_values_of(View<T, 2> out, const models::LayerView<T>& view, const models::DecoderConfig& config,
                    const ExecutionContext& context);

}  // namespace headgate::metrics
