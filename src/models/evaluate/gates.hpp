// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/runtime.hpp"
#include "models/decoder/decoder.hpp"

// The gates of a layer as they act: after the function, and after the mean over heads where they share one.

namespace headgate::metrics {

/// Gates of a token; 0 without.
std::int64_t gate_width(const models::DecoderConfig& config);

/// Heads with gates of their own: query heads, or key/value heads where the gate is on keys or values. 0: the heads
/// share one, or it is on the layer's output, or there is none.
std::int64_t gate_owners(const models::DecoderConfig& config);

/// out(N,gate_width) = g(z), for observers of Tap::gate_logits of a model with a gate.
template <typename T>
void gate_values_of(View<T, 2> out, const models::LayerView<T>& view, const models::DecoderConfig& config,
                    const ExecutionContext& context);

}  // namespace headgate::metrics
