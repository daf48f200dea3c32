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

// Defines what a metric is. Each metric has its own header in this folder, with its figures, its sums and its row of
// the registry.

namespace headgate::metrics {

/// What a metric reads. Inputs that no metric reads are not computed.
enum class Input {
  token_losses,         ///< LossSample::token_losses
  exit_loss,            ///< LayerView::exit_loss, which costs another pass through the vocabulary head for each layer
  output,               ///< LayerView::output
  values,               ///< LayerView::v
  first_token_weights,  ///< LayerSample::first_token_weights
  gates,                ///< LayerSample::gates
  entropies,            ///< LayerSample::entropies, which cost half a forward pass of attention
  sink_weights,         ///< LayerView::sinks and lse
  rule_means,           ///< RuleStatistics::mean_decay, mean_beta and half_life
  hidden_weights,       ///< RuleStatistics::first_shares and reaches, which cost as much as attention: T² operations
  state_ranks,          ///< RuleStatistics::effective_rank, which costs a forward pass of linear attention
  output_gates,         ///< LayerView::gate of linear attention
};
using Inputs = EnumSet<Input>;

/// What linear_attention_statistics says of a layer; parts that no metric reads are absent.
struct RuleStatistics {
  View<const double, 2> mean_decay, mean_beta, half_life;  ///< (B,Hv) of each state, over the tokens of the sample
  View<const double, 2> effective_rank;                    ///< (B,Hv) with the last token of the sequences, else absent
  /// (Hv,B·seq_len) of each query of whole sequences, with their last token, else absent. No metric counts query 0.
  View<const double, 2> first_shares, reaches;
};

/// Shows metrics a layer of one batch, or a part of it. Inputs that several metrics read are computed once.
template <typename T>
struct LayerSample {
  const models::LayerView<T>& view;
  const ExecutionContext& context;  ///< resolved()
  /// (Hq,N) softmax weight on token 0 of the query's sequence. No metric counts query 0, which sees only itself.
  View<const double, 2> first_token_weights;
  /// (Hq,N) −Σ w log w of the query's softmax weights, in nats.
  View<const double, 2> entropies;
  /// (N,width) g(z) as applied: after the function, and after the mean over heads if they share one. Absent without a
  /// gate.
  View<const T, 2> gates;
  RuleStatistics rule;                   ///< of linear attention
  View<const std::uint8_t, 1> triggers;  ///< (N) nonzero at triggers; absent for tasks without triggers
  std::int64_t counted_targets = 0;      ///< targets that are not layers::kIgnoredTarget

  std::int64_t tokens() const { return view.shape.batch * view.shape.seq; }
  std::int64_t position(std::int64_t n) const { return view.first_position + n % view.shape.seq; }
  bool is_trigger(std::int64_t n) const { return triggers(n) != 0; }
};

/// Shows metrics the losses of one batch of N tokens.
template <typename T>
struct LossSample {
  View<const T, 1> token_losses;         ///< (N)
  View<const std::int32_t, 1> targets;   ///< (N) layers::kIgnoredTarget for ignored tokens
  View<const std::uint8_t, 1> triggers;  ///< (N) nonzero at triggers; absent for tasks without triggers

  std::int64_t tokens() const { return targets.shape[0]; }
};

/// One value for each figure of a metric, in the same order.
using Values = std::vector<std::optional<double>>;

/// Accumulates a metric over the batches of an evaluation. Receives only the layers that the metric is about and the
/// inputs that it names; no gates if the model has none, and no Scope::triggers if the task has none.
template <typename T>
class Sums {
 public:
  virtual ~Sums() = default;
  virtual void add_layer(const LayerSample<T>& /*sample*/) {}
  virtual void add_losses(const LossSample<T>& /*sample*/) {}
  /// Returns the values of Scope::layers and Scope::layers_and_mean.
  virtual Values of_layer(std::int64_t /*layer*/) const { return {}; }
  /// Returns the values of a query head for Metric::of_heads; null if it has none of its own.
  virtual Values of_head(std::int64_t /*layer*/, std::int64_t /*head*/) const { return {}; }
  /// Returns the values of Scope::model and Scope::triggers.
  virtual Values of_model() const { return {}; }
};

/// What a metric's figures describe.
enum class Scope {
  model,            ///< the whole model
  layers,           ///< each layer
  layers_and_mean,  ///< each layer, and for the whole model the mean over the layers that have the figure, or the
                    ///< largest
  triggers,         ///< the whole model, on tasks with triggers: under "backcopy"
};

/// Which layers a metric is about. Its figures of the other layers are null.
enum class MetricLayers {
  all,
  attention,
  first_token,  ///< layers of attention in which every query sees the first token
  linear_attention,
};

/// Creates a metric's sums for a model.
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

/// A row of the registry.
struct Metric {
  std::string_view name{};        ///< name for `headgate eval --metrics`
  std::string_view definition{};  ///< formula and units, as in docs/reference/training.md
  std::span<const Figure> figures{};
  Scope scope = Scope::layers_and_mean;
  MetricLayers layers = MetricLayers::all;
  Inputs inputs{};
  bool of_heads = false;  ///< its figures of layers exist for each query head too; of linear attention, each value head
  SumsMaker sums{};
  bool by_default = true;  ///< part of every evaluation; false if it costs too much
  /// Returns a line above the tables of `headgate eval`. Null: none.
  std::string (*headline)(const FigureRow& row) = nullptr;
  /// Returns the text that `headgate train` prints of an evaluation. Texts are printed in a row, so each begins with
  /// its separator. Null: nothing.
  std::string (*training_text)(const FigureRow& row) = nullptr;
};

}  // namespace headgate::metrics
