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
  token_losses,         ///< LossSample::token_losses
  exit_loss,            ///< LayerView::exit_loss; costs one pass through the vocabulary head per layer
  output,               ///< LayerView::output and sequence_output
  values,               ///< LayerView::v
  cached,               ///< LayerView::k, v and cache
  first_token_weights,  ///< LayerSample::first_token_weights
  gates,                ///< LayerSample::gates
  entropies,            ///< LayerSample::entropies; costs half a forward pass of attention
  sink_weights,         ///< LayerView::sinks and LayerView::lse
  rule_means,           ///< RuleStatistics::mean_decay, mean_beta and half_life
  hidden_weights,  ///< RuleStatistics::first_shares and reaches; costs O(T²) operations, as softmax attention does
  state_ranks,     ///< RuleStatistics::effective_rank; costs a forward pass of linear attention
  output_gates,    ///< LayerView::gate of linear attention
};
using Inputs = EnumSet<Input>;

/// Holds the results of linear_attention_statistics for a layer. Arrays that no metric reads are absent.
struct RuleStatistics {
  View<const double, 2> mean_decay, mean_beta, half_life;  ///< (B,Hv) means over the tokens of the sample
  View<const double, 2> effective_rank;  ///< (B,Hv) rank of the state; present if the sample has the last token
  /// (Hv,B·seq_len) with one number per query of whole sequences. Present if the sample has the last token. Metrics
  /// ignore query 0.
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
  RuleStatistics rule;                   ///< statistics of the delta rule, in layers of linear attention
  View<const std::uint8_t, 1> triggers;  ///< (N) nonzero at trigger tokens; absent if the task has none
  std::int64_t counted_targets = 0;      ///< number of targets that are not layers::kIgnoredTarget

  std::int64_t tokens() const { return view.shape.batch * view.shape.seq; }
  std::int64_t position(std::int64_t n) const { return view.first_position + n % view.shape.seq; }
  bool is_trigger(std::int64_t n) const { return triggers(n) != 0; }
};

/// The losses of one batch of N tokens, from which metrics compute figures.
template <typename T>
struct LossSample {
  View<const T, 1> token_losses;         ///< (N)
  View<const std::int32_t, 1> targets;   ///< (N) target ids; layers::kIgnoredTarget for targets without a loss
  View<const std::uint8_t, 1> triggers;  ///< (N) nonzero at trigger tokens; absent if the task has none

  std::int64_t tokens() const { return targets.shape[0]; }
};

/// Values of a metric's figures, in the order of Metric::figures.
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
  /// Returns a layer's values, for Scope::layers and Scope::layers_and_mean.
  virtual Values of_layer(std::int64_t /*layer*/) const { return {}; }
  /// Returns a head's values, for metrics with Metric::of_heads. A value is null where the head has none.
  virtual Values of_head(std::int64_t /*layer*/, std::int64_t /*head*/) const { return {}; }
  /// Returns the model's values, for Scope::model and Scope::triggers.
  virtual Values of_model() const { return {}; }
};

/// Selects the part of a model that a metric's figures describe.
enum class Scope {
  model,            ///< the whole model
  layers,           ///< each layer
  layers_and_mean,  ///< each layer, and the whole model as Figure::over_layers says
  triggers,         ///< the whole model, only for tasks with trigger tokens; JSON key "backcopy"
};

/// Selects the layers that a metric covers. Its figures are null for other layers.
enum class MetricLayers {
  all,
  attention,
  first_token,  ///< softmax attention layers in which every query sees the first token
  linear_attention,
};

/// Creates the accumulator of a metric for a model, in f32 or in f64.
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
  bool of_heads = false;  ///< each layer figure also exists per query head (per value head in linear attention)
  SumsMaker sums{};
  bool by_default = true;  ///< whether the metric is computed if the user names none; false for slow metrics
  /// Returns a line that is printed above the tables of `headgate eval`. A null pointer prints none.
  std::string (*headline)(const FigureRow& row) = nullptr;
  /// Returns the text that `headgate train` prints for an evaluation. The text begins with a separator, because the
  /// texts of all metrics are joined. A null pointer prints nothing.
  std::string (*training_text)(const FigureRow& row) = nullptr;
};

}  // namespace headgate::metrics
