// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "headgate/runtime.hpp"
#include "models/decoder/decoder.hpp"
#include "models/decoder/weights.hpp"
#include "tool/reports/xray/head_map.hpp"
#include "tool/reports/xray/ranks.hpp"

namespace headgate::xray {

inline constexpr std::size_t kGateBins = 20;
inline constexpr std::size_t kTopKeys = 8;

/// Histogram of gates over 20 equal bins of [0,1]. Values outside count in the first or the last bin.
using GateHistogram = std::array<std::int64_t, kGateBins>;

/// Holds the data that the page shows for a head: a query head of attention, or a value head of linear attention. The
/// weights w of a query are softmax weights. For linear attention, they are the shares |a| / Σ|a| of
/// linear_attention_weights().
struct HeadRecord {
  std::string map;                                        ///< HeadMap::cells(), encoded by as_roots()
  std::string received;                                   ///< (T) HeadMap::received(), encoded by as_roots()
  std::vector<std::pair<std::int64_t, double>> top_keys;  ///< (token, weight) of the keys with the largest `received`
  /// (T) mean gate over features, encoded by as_bytes(); none if the head has no gate of its own. For linear attention,
  /// the mean of |silu(z)|.
  std::optional<std::string> gate;
  std::optional<GateHistogram> gate_histogram;
  std::vector<double> value_output_singular_values;  ///< (D) singular values of W_v W_o; empty for linear attention
  std::optional<double> value_output_rank;           ///< effective rank of W_v W_o
  double written_rank = 0.0;   ///< effective rank of the head's contribution to the residual stream, (T,C)
  double mean_distance = 0.0;  ///< Σ w_tj (t − j) / Σ w_tj in tokens, mean over the queries 1 … T−1
};

struct LayerRecord {
  std::vector<HeadRecord> heads;
  std::string received;             ///< (T) weight that each key receives, mean over heads, by as_roots()
  std::optional<std::string> gate;  ///< (T) mean over the layer's gates, encoded by as_bytes(); absent without a gate
};

/// The largest absolute value in the residual stream and its position. If a NaN occurs, `value` is NaN at the position
/// of the first NaN.
struct LargestActivation {
  double value = 0.0;
  std::int64_t layer = 0, token = 0, channel = 0;
};

/// Collects the LayerRecords of one sequence of T tokens while a model processes the sequence, whole or in parts. Uses
/// O(T) memory.
class Collector : public models::LayerObserver<float> {
 public:
  /// `config` and `parameters` describe the model and must outlive the collector. `part`: maximum number of tokens that
  /// pass through a layer at a time. `cells`: maximum number of cells per side of a map. The decoder must keep the
  /// inputs of the delta rule.
  Collector(const models::DecoderConfig& config, const float* parameters, std::int64_t tokens, std::int64_t part,
            std::int64_t cells, const ExecutionContext& context);

  /// Returns the number of bytes that a collector allocates while it collects a layer.
  static std::size_t planned_bytes(const models::DecoderConfig& config, std::int64_t tokens, std::int64_t part,
                                   std::int64_t cells);

  models::Taps taps() const override;
  void after_layer(const models::LayerView<float>& view) override;

  const std::vector<LayerRecord>& layers() const { return layers_; }
  const LargestActivation& largest_activation() const { return largest_activation_; }

 private:
  /// Sums of one head over the tokens of all parts so far.
  struct HeadSums {
    HeadMap map;
    Gram written;                // Gram matrix of the head's output before W_o
    double distances = 0.0;      // sum over queries of Σ w (t − j) / Σ w
    std::vector<double> gate{};  // (T) mean over features; empty if the head has no gate of its own
    GateHistogram histogram{};
  };
  void find_largest_activation(const models::LayerView<float>& view);
  void begin(const models::LayerView<float>& view);
  void add_looks(const models::LayerView<float>& view);
  std::int64_t weigh(const models::LayerView<float>& view, std::int64_t begin, std::int64_t count);
  void add_gates(const models::LayerView<float>& view);
  void add_output_gates(const models::LayerView<float>& view);
  void finish(const models::LayerView<float>& view);
  void add_ranks(LayerRecord& record, std::int64_t layer) const;

  const models::DecoderConfig& config_;
  const float* parameters_;
  models::WeightPlaces places_;
  std::int64_t tokens_, cells_;
  ExecutionContext context_;
  std::vector<LayerRecord> layers_;
  LargestActivation largest_activation_;
  std::vector<HeadSums> heads_;  // for each head of the current layer, sums over its queries
  std::vector<double> gate_;     // (T) mean over the gates of the current layer; empty without a gate
  std::vector<float> rows_;      // (heads,R,S) weights of R queries
  std::vector<float> gates_;     // (part,gate_width) gates of the current part
};

}  // namespace headgate::xray
