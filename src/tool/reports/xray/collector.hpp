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

/// Histogram of gate values in 20 equal bins of [0,1].
/// Values below 0 count in the first bin, values above 1 in the last.
using GateHistogram = std::array<std::int64_t, kGateBins>;

/// The data that the page shows for one head: a query head of attention, or a value head of linear attention.
/// Below, w are the head's attention weights.
/// For linear attention, w = |a| / Σ|a|, where a are the results of linear_attention_weights() for a query.
struct HeadRecord {
  std::string map;       ///< mean weight of each cell of the head's map (HeadMap), encoded by as_roots()
  std::string received;  ///< (T) mean weight of each key (HeadMap::received()), encoded by as_roots()
  std::vector<std::pair<std::int64_t, double>> top_keys;  ///< (token, mean weight) of the keys with most weight
  /// (T) mean over the features of the head's gate, encoded by as_bytes(). For linear attention, the mean of |silu(z)|.
  /// Absent if the head has no gate of its own.
  std::optional<std::string> gate;
  std::optional<GateHistogram> gate_histogram;
  std::vector<double> value_output_singular_values;  ///< (D) singular values of W_v W_o; empty for linear attention
  std::optional<double> value_output_rank;           ///< effective rank of W_v W_o
  double written_rank = 0.0;                         ///< effective rank of the head's output after W_o, (T,C)
  /// Mean distance in tokens between a query t and its keys j, weighted by attention: Σ w_tj (t − j) / Σ w_tj.
  /// Averaged over the queries t = 1 … T − 1.
  double mean_distance = 0.0;
};

struct LayerRecord {
  std::vector<HeadRecord> heads;
  std::string received;             ///< (T) mean weight of each key, mean over heads; encoded by as_roots()
  std::optional<std::string> gate;  ///< (T) mean over all gates of the layer, by as_bytes(); absent without a gate
};

/// The largest absolute value among the outputs of all layers, and its position.
/// If an output is NaN, `value` is NaN and the position is that of the first NaN.
struct LargestActivation {
  double value = 0.0;
  std::int64_t layer = 0, token = 0, channel = 0;
};

/// Computes the LayerRecords of one sequence of T tokens while a model processes it. Uses O(T) memory.
/// The model may pass the sequence through each layer in several parts.
class Collector : public models::LayerObserver<float> {
 public:
  /// `config` and `parameters` describe the model and must outlive the collector.
  /// `part`: maximum number of tokens that pass through a layer at a time.
  /// `cells`: maximum number of cells per side of a head's map.
  /// With linear attention, the observed decoder must have PartOptions::stores_delta_inputs set.
  Collector(const models::DecoderConfig& config, const float* parameters, std::int64_t tokens, std::int64_t part,
            std::int64_t cells, const ExecutionContext& context);

  /// Returns how many bytes a collector allocates while it processes a layer.
  static std::size_t planned_bytes(const models::DecoderConfig& config, std::int64_t tokens, std::int64_t part,
                                   std::int64_t cells);

  models::Taps taps() const override;
  void after_layer(const models::LayerView<float>& view) override;

  const std::vector<LayerRecord>& layers() const { return layers_; }
  const LargestActivation& largest_activation() const { return largest_activation_; }

 private:
  /// Running sums of one head over the tokens processed so far.
  struct HeadSums {
    HeadMap map;
    Gram written;                // Gram matrix of the head's output before W_o
    double distances = 0.0;      // sum over queries t of Σ w_tj (t − j) / Σ w_tj, the mean distance to keys j
    std::vector<double> gate{};  // (T) mean gate over features; empty if the head has no gate of its own
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
  models::WeightLayout layout_;
  std::int64_t tokens_, cells_;
  ExecutionContext context_;
  std::vector<LayerRecord> layers_;
  LargestActivation largest_activation_;
  std::vector<HeadSums> heads_;  // running sums of each head of the current layer
  std::vector<double> gate_;     // (T) mean gate of the current layer; empty without a gate
  std::vector<float> rows_;      // (heads,R,S) attention weights of R queries on S keys
  std::vector<float> gates_;     // (part,gate_width) gate values of the current part of the sequence
};

}  // namespace headgate::xray
