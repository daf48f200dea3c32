// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/decoder/config.hpp"
#include "models/evaluate/metric.hpp"

// Says how many heads a layer has, and which layers a metric covers.

namespace headgate::metrics {

/// Returns whether a layer has linear attention.
bool is_linear(const models::DecoderConfig& config, std::int64_t layer);

/// Returns the number of query heads of a softmax attention layer, or of value heads of a linear attention layer.
std::int64_t heads_of_layer(const models::DecoderConfig& config, std::int64_t layer);

/// Returns the largest number of query heads of any softmax attention layer; 0 if the model has no such layer.
std::int64_t most_query_heads(const models::DecoderConfig& config);
/// Returns the number of value heads in linear attention layers; 0 if the model has no such layer.
std::int64_t value_heads(const models::DecoderConfig& config);

/// Returns whether a metric has values for a layer when sequences have `seq_len` tokens.
bool is_about(const Metric& metric, const models::DecoderConfig& config, std::int64_t layer, std::int64_t seq_len);
/// Returns whether a metric has values for at least one layer of the model.
bool is_about(const Metric& metric, const models::DecoderConfig& config, std::int64_t seq_len);

/// Returns whether every softmax attention layer has a window that hides the first token from some queries. Returns
/// false for models without softmax attention layers.
bool hides_first_token(const models::DecoderConfig& config, std::int64_t seq_len);

}  // namespace headgate::metrics
