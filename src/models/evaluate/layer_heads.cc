// SPDX-License-Identifier: Apache-2.0
#include "models/evaluate/layer_heads.hpp"

#include <algorithm>

namespace headgate::metrics {

using models::DecoderConfig;
using models::LayerConfig;
using models::LayerType;

namespace {

bool is_about(MetricLayers layers, const DecoderConfig& config, std::int64_t layer, std::int64_t seq_len) {
  const LayerConfig c = models::layer_config(config, layer);
  const bool linear = c.type == LayerType::linear_attention;
  switch (layers) {
    case MetricLayers::all: return true;
    case MetricLayers::attention: return !linear;
    case MetricLayers::first_token: return !linear && (c.window == 0 || c.window >= seq_len);
    case MetricLayers::linear_attention: return linear;
  }
  return false;
}

bool is_about(MetricLayers layers, const DecoderConfig& config, std::int64_t seq_len) {
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    if (is_about(layers, config, layer, seq_len)) return true;
  }
  return false;
}

}  // namespace

bool is_linear(const DecoderConfig& config, std::int64_t layer) {
  return models::layer_config(config, layer).type == LayerType::linear_attention;
}

std::int64_t heads_of_layer(const DecoderConfig& config, std::int64_t layer) {
  return is_linear(config, layer) ? config.linear.value_heads : models::layer_config(config, layer).heads;
}

std::int64_t most_query_heads(const DecoderConfig& config) {
  std::int64_t most = 0;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    if (!is_linear(config, layer)) most = std::max(most, heads_of_layer(config, layer));
  }
  return most;
}

std::int64_t value_heads(const DecoderConfig& config) {
  return models::has_layer(config, LayerType::linear_attention) ? config.linear.value_heads : 0;
}

bool is_about(const Metric& metric, const DecoderConfig& config, std::int64_t layer, std::int64_t seq_len) {
  return is_about(metric.layers, config, layer, seq_len);
}

bool is_about(const Metric& metric, const DecoderConfig& config, std::int64_t seq_len) {
  return is_about(metric.layers, config, seq_len);
}

bool hides_first_token(const DecoderConfig& config, std::int64_t seq_len) {
  return is_about(MetricLayers::attention, config, seq_len) && !is_about(MetricLayers::first_token, config, seq_len);
}

}  // namespace headgate::metrics
