// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "models/decoder/plain_decoder.hpp"
#include "models/decoder/tiny.hpp"
#include "models/evaluate/metric.hpp"

namespace headgate::metrics {

/// Holds batches of kTinyBatch that the plain decoder ran.
struct PlainBatches {
  models::DecoderConfig config;
  std::vector<models::PlainRun> runs;
  std::vector<std::vector<std::uint8_t>> triggers;  ///< (N) of each batch

  bool is_linear(std::size_t layer) const {
    return models::layer_config(config, static_cast<std::int64_t>(layer)).type == models::LayerType::linear_attention;
  }
  /// Returns query heads, or value heads of linear attention.
  std::int64_t heads(std::size_t layer) const {
    return is_linear(layer) ? config.linear.value_heads
                            : models::layer_config(config, static_cast<std::int64_t>(layer)).heads;
  }
  /// Returns whether every query of a layer of attention sees token 0.
  bool sees_first(std::size_t layer) const {
    const std::int64_t window = models::layer_config(config, static_cast<std::int64_t>(layer)).window;
    return !is_linear(layer) && (window == 0 || window >= models::kTinyBatch.seq);
  }
  /// Returns the attention of query t to key j; of linear attention, what it reads of its value.
  double weight(std::size_t run, std::size_t layer, std::int64_t b, std::int64_t h, std::int64_t t,
                std::int64_t j) const {
    const std::int64_t T = models::kTinyBatch.seq;
    const models::PlainLayer& plain = runs[run].layers[layer];
    const auto at = static_cast<std::size_t>(((b * heads(layer) + h) * T + t) * T + j);
    return is_linear(layer) ? plain.rule_weights[at] : plain.weights[at];
  }
};

/// Computes a metric by its definition: plain loops over whole attention matrices, gates, values and outputs.
struct PlainMetric {
  std::string_view name;
  /// Like those of Sums; the one that the metric's scope does not use is null.
  Values (*of_layer)(const PlainBatches& batches, std::size_t layer) = nullptr;
  Values (*of_model)(const PlainBatches& batches) = nullptr;
  Values (*of_head)(const PlainBatches& batches, std::size_t layer, std::int64_t head) = nullptr;
};

/// Has one entry for each row of the registry.
std::span<const PlainMetric> plain_metrics();

}  // namespace headgate::metrics
