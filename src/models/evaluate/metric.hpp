// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headgate/runtime.hpp"
#include "library/core/enum_set.hpp"
#include "library/core/view.hpp"
#include "models/decoder/decoder.hpp"
#include "models/evaluate/figure.hpp"

// Defines metrics. Each metric has its own header in this folder, with its figures (the numbers that it computes), its
// accumulator and its registry entry.

namespace headgate::metrics {

/// Inputs that a metric can read. The evaluator computes an input if some metric reads it.
enum class Input {
  token_losses,  ///< loss of each token: LossSample::token_losses
  /// Loss if a layer were the last one: LayerView::exit_loss. Costs one pass through the vocabulary head per layer.
  exit_loss,
  output,               ///< residual stream after a layer: LayerView::output and LayerView::sequence_output
  values,               ///< values of attention and linear attention: LayerView::v
  cached,               ///< keys and values of softmax attention: LayerView::k, v and cache
  first_token_weights,  ///< softmax weights on token 0: LayerSample::first_token_weights
  gates,                ///< gates of softmax attention: LayerSample::gates
  /// Entropies of the softmax weights: LayerSample::entropies. Costs half a forward pass of attention.
  entropies,
  sink_weights,  ///< sink logits and log-sum-exp, which give the weight of the sink: LayerView::sinks and lse
  rule_means,    ///< decay and write strength of linear attention: RuleStatistics::mean_decay, mean_beta, half_life
  /// Weights that queries of linear attention give to tokens: RuleStatistics::first_shares and reaches. Costs O(T²)
  /// operations, as softmax attention does.
  hidden_weights,
  /// Rank of the state of linear attention: RuleStatistics::effective_rank. Costs a forward pass of linear attention.
  state_ranks,
  output_gates,  ///< logits of the output gate of linear attention: LayerView::gate
};
using Inputs = EnumSet<Input>;

/// Holds the results of linear_attention_statistics for a layer. Arrays that no metric reads are absent.
struct RuleStatistics {
  View<const double, 2> mean_decay, mean_beta, half_life;  ///< (B,Hv) means over the tokens of the sample
  /// (B,Hv) effective rank of the state after the last token. Present if the sample has that token.
  View<const double, 2> effective_rank;
  /// (Hv,B·seq_len) numbers of the queries of whole sequences: the share of token 0 in the weights, and the mean
  /// distance to the weighted tokens. Present if the sample has the last token. Metrics ignore query 0.
  View<const double, 2> first_shares, reaches;
};

/// Holds the data of one layer, for a batch or a part of it, from which metrics compute their figures.
template <typename T>
struct LayerSample {
  const models::LayerView<T>& view;
  const ExecutionContext& context;  ///< context from resolved() (runtime.hpp)
  /// (Hq,N) softmax weight of each query on token 0 of its sequence. Metrics ignore query 0, which attends only to
  /// itself.
  View<const double, 2> first_token_weights;
  /// (Hq,N) entropy −Σ w log w of each query's softmax weights w, in nats.
  View<const double, 2> entropies;
  /// (N,gate_width) gates g(z), averaged over heads if all heads share one gate. Absent without a gate.
  View<const T, 2> gates;
  RuleStatistics rule;  ///< statistics of the delta rule, in layers of linear attention
  /// (N) nonzero at trigger tokens (SequenceSource::is_trigger). Absent if the task has none.
  View<const std::uint8_t, 1> triggers;
  std::int64_t counted_targets = 0;  ///< number of targets that are not layers::kIgnoredTarget

  std::int64_t tokens() const { return view.shape.batch * view.shape.seq; }
  std::int64_t position(std::int64_t n) const { return view.first_position + n % view.shape.seq; }
  bool is_trigger(std::int64_t n) const { return triggers(n) != 0; }
};

/// The losses of one batch of N tokens, from which metrics compute figures.
template <typename T>
struct LossSample {
  View<const T, 1> token_losses;        ///< (N) loss of each token in nats
  View<const std::int32_t, 1> targets;  ///< (N) target ids; layers::kIgnoredTarget for targets without a loss
  /// (N) nonzero at trigger tokens (SequenceSource::is_trigger). Absent if the task has none.
  View<const std::uint8_t, 1> triggers;

  std::int64_t tokens() const { return targets.shape[0]; }
};

/// The numbers that a metric computed, one for each element of Metric::figures. An empty element is null in JSON.
using Values = std::vector<std::optional<double>>;

/// Accumulates a metric over the batches of an evaluation. The evaluator calls it only where the metric is defined:
/// - for layers that Metric::layers selects
/// - for layers with a gate, if the metric reads gates
/// - for batches with trigger tokens, if the metric has Scope::triggers
template <typename T>
class Sums {
 public:
  virtual ~Sums() = default;
  virtual void add_layer(const LayerSample<T>& /*sample*/) {}
  virtual void add_losses(const LossSample<T>& /*sample*/) {}
  /// Returns the metric's numbers for a layer. Called for metrics with Scope::layers or Scope::layers_and_mean.
  virtual Values of_layer(std::int64_t /*layer*/) const { return {}; }
  /// Returns the metric's numbers for a head. Called for metrics with Metric::of_heads. A number is null if undefined.
  virtual Values of_head(std::int64_t /*layer*/, std::int64_t /*head*/) const { return {}; }
  /// Returns the metric's numbers for the whole model. Called for metrics with Scope::model or Scope::triggers.
  virtual Values of_model() const { return {}; }
};

/// Selects whether a metric's numbers describe each layer or the whole model.
enum class Scope {
  model,            ///< the whole model
  layers,           ///< each layer
  layers_and_mean,  ///< each layer, and the whole model by combining the layers (Figure::over_layers)
  triggers,         ///< the whole model, only for tasks with trigger tokens; JSON key "backcopy"
};

/// Selects the layers for which a metric is defined. For other layers, its numbers are null.
enum class MetricLayers {
  all,
  attention,
  first_token,  ///< softmax attention layers in which no window hides the first token from a query
  linear_attention,
};

/// Holds the functions that create a metric's accumulator, for models with activations in f32 or in f64.
struct SumsMaker {
  std::unique_ptr<Sums<float>> (*f32)(const models::DecoderConfig& config) = nullptr;
  std::unique_ptr<Sums<double>> (*f64)(const models::DecoderConfig& config) = nullptr;
};

template <template <typename> class MetricSums, typename T>
std::unique_ptr<Sums<T>> make_sums(const models::DecoderConfig& config) {
  return std::make_unique<MetricSums<T>>(config);
}

template <template <typename> class MetricSums>
inline constexpr SumsMaker kSumsOf{make_sums<MetricSums, float>, make_sums<MetricSums, double>};

/// Describes a metric: an entry of the registry.
struct Metric {
  std::string_view name{};        ///< argument of `headgate eval --metrics`
  std::string_view definition{};  ///< formula and units, as in docs/reference/training.md
  std::span<const Figure> figures{};
  Scope scope = Scope::layers_and_mean;
  MetricLayers layers = MetricLayers::all;
  Inputs inputs{};
  bool of_heads = false;  ///< whether the metric also has numbers for each query head (value head in linear attention)
  SumsMaker sums{};
  bool by_default = true;  ///< whether the metric is computed if the user names none; false for slow metrics
  /// Returns a line that is printed above the tables of `headgate eval`. A null pointer prints none.
  std::string (*headline)(const FigureRow& row) = nullptr;
  /// Returns the text that `headgate train` prints for an evaluation. The text begins with a separator, because the
  /// texts of all metrics are joined. A null pointer prints nothing.
  std::string (*training_text)(const FigureRow& row) = nullptr;
};

}  // namespace headgate::metrics
