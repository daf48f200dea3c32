// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/decoder/config.hpp"
#include "models/evaluate/metric.hpp"

// Says what the layers of a model have where layers differ: their heads, and the metrics that are about them.

namespace headgate::metrics {

/// Returns whether a layer is one of linear attention.
bool is_linear(const models::DecoderConfig& config, std::int64_t layer);

/// Returns the query heads of a layer of attention, or the value heads of one of linear attention.
std::int64_t heads_of_layer(const models::DecoderConfig& config, std::int64_t layer);

/// Returns the most query heads of a layer of attention; 0 if the model has none.
std::int64_t most_query_heads(const models::DecoderConfig& config);
/// Returns the value heads of layers of linear attention; 0 if the model has none.
std::int64_t value_heads(const models::DecoderConfig& config);

/// Returns whether a metric is about a layer, in sequences of `seq_len` tokens.
bool is_about(const Metric& metric, const models::DecoderConfig& config, std::int64_t layer, std::int64_t seq_len);
/// Returns whether it is about some layer of the model.
bool is_about(const Metric& metric, const models::DecoderConfig& config, std::int64_t seq_len);

/// Returns whether the model has layers of attention, and in each of them a window hides the first token from some
/// query.
bool hides_first_token(const models::DecoderConfig& config, std::int64_t seq_len);

}  // namespace headgate::metrics
