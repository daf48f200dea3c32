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

  /// Returns the attention of query t to key j.
  double weight(std::size_t run, std::size_t layer, std::int64_t b, std::int64_t h, std::int64_t t,
                std::int64_t j) const {
    const std::int64_t T = models::kTinyBatch.seq;
    return runs[run].layers[layer].weights[static_cast<std::size_t>(((b * config.heads + h) * T + t) * T + j)];
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
