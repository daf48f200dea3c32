// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/runtime.hpp"
#include "models/decoder/decoder.hpp"

// Computes the gates of a layer as applied: after the function, and after the mean over heads if they share one.

namespace headgate::metrics {

/// Returns the number of gates of a token in a layer of attention; 0 without a gate, and in layers of linear attention.
std::int64_t gate_width(const models::DecoderConfig& config, std::int64_t layer);
/// Returns the largest of them.
std::int64_t most_gates(const models::DecoderConfig& config);

/// Returns the number of heads of a layer with their own gates: query heads, or key/value heads if the gate is on keys
/// or values. Returns 0 if the heads share a gate, if the gate is on the layer's output, or if there is none.
std::int64_t gate_owners(const models::DecoderConfig& config, std::int64_t layer);

/// out(N,gate_width) = g(z), for observers of Tap::gate_logits of a layer of attention with a gate.
template <typename T>
void gate_values_of(View<T, 2> out, const models::LayerView<T>& view, const models::DecoderConfig& config,
                    const ExecutionContext& context);

}  // namespace headgate::metrics
