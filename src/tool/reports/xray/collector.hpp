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

/// Counts gates in each twentieth of [0,1]; those outside count in the first or last one.
using GateHistogram = std::array<std::int64_t, kGateBins>;

/// What the page shows of a head: a query head of attention, or a value head of linear attention. The weights w of a
/// query are those of the softmax; of linear attention the shares |a| / Σ|a| of linear_attention_weights.
struct HeadRecord {
  std::string map;                                        ///< as_roots of HeadMap::cells
  std::string received;                                   ///< (T) as_roots of HeadMap::received
  std::vector<std::pair<std::int64_t, double>> top_keys;  ///< of the largest `received`: token, weight
  /// (T) as_bytes of the mean over features; none if the head has no gate of its own. Of linear attention: of |silu(z)|
  std::optional<std::string> gate;
  std::optional<GateHistogram> gate_histogram;
  std::vector<double> value_output_singular_values;  ///< (D) of W_v W_o; none of linear attention
  std::optional<double> value_output_rank;           ///< effective rank of W_v W_o
  double written_rank = 0.0;                         ///< effective rank of what the head writes over the text, (T,C)
  double mean_distance = 0.0;  ///< Σ w_tj (t − j) / Σ w_tj in tokens, mean over the queries 1 … T−1
};

struct LayerRecord {
  std::vector<HeadRecord> heads;
  std::string received;             ///< (T) mean over heads
  std::optional<std::string> gate;  ///< (T) mean over all gates of the layer; none without a gate
};

/// Where the residual stream has its largest absolute value; NaN where it first has a NaN.
struct LargestActivation {
  double value = 0.0;
  std::int64_t layer = 0, token = 0, channel = 0;
};

/// Gathers records of one sequence of T tokens while a model runs on it, whole or in parts, in O(T) memory.
class Collector : public models::LayerObserver<float> {
 public:
  /// `config` and `parameters` are the model's, `part` the most tokens that pass through a layer at a time; maps have
  /// at most `cells` a side. All must outlive the collector. Its decoder must keep what the delta rule reads.
  Collector(const models::DecoderConfig& config, const float* parameters, std::int64_t tokens, std::int64_t part,
            std::int64_t cells, const ExecutionContext& context);

  /// Returns the bytes that a collector allocates while a layer is gathered.
  static std::size_t planned_bytes(const models::DecoderConfig& config, std::int64_t tokens, std::int64_t part,
                                   std::int64_t cells);

  models::Taps taps() const override;
  void after_layer(const models::LayerView<float>& view) override;

  const std::vector<LayerRecord>& layers() const { return layers_; }
  const LargestActivation& largest_activation() const { return largest_activation_; }

 private:
  /// Sums over the tokens of a head, to which parts add.
  struct HeadSums {
    HeadMap map;
    Gram written;                // of what the head writes, before W_o
    double distances = 0.0;      // Σ over queries of Σ w (t − j) / Σ w
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
  std::vector<HeadSums> heads_;  // of the layer that is gathered
  std::vector<double> gate_;     // (T) mean over the gates of that layer; empty without a gate
  std::vector<float> rows_;      // (heads,R,S) weights of R queries
  std::vector<float> gates_;     // (part,gate_width)
};

}  // namespace headgate::xray
