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

// What a metric is. Each has a header of its own in this folder, with its figures, its sums and its row of the
// registry.

namespace headgate::metrics {

/// What a metric looks at. What nobody looks at is not computed.
enum class Input {
  token_losses,         ///< LossSample::token_losses
  exit_loss,            ///< LayerView::exit_loss, which costs a pass through the vocabulary's head for each layer
  output,               ///< LayerView::output
  values,               ///< LayerView::v
  first_token_weights,  ///< LayerSample::first_token_weights
  gates,                ///< LayerSample::gates
  entropies,            ///< LayerSample::entropies, which costs half a forward pass of attention
};
using Inputs = EnumSet<Input>;

/// A layer of one batch. What several metrics look at is made once for all of them.
template <typename T>
struct LayerSample {
  const models::LayerView<T>& view;
  const ExecutionContext& context;  ///< resolved()
  /// (Hq,N) softmax weight on token 0 of the query's sequence. Query 0 sees itself alone: no metric counts it.
  View<const double, 2> first_token_weights;
  /// (Hq,N) −Σ w log w of the query's softmax weights, in nats.
  View<const double, 2> entropies;
  /// (N,width) g(z) as the gates act: after the function, and after the mean over heads where they share one. Absent
  /// without a gate.
  View<const T, 2> gates;
  View<const std::uint8_t, 1> triggers;  ///< (N) nonzero at triggers; absent on tasks without
  std::int64_t counted_targets = 0;      ///< that are not layers::kIgnoredTarget

  std::int64_t tokens() const { return view.shape.batch * view.shape.seq; }
  std::int64_t position(std::int64_t n) const { return n % view.shape.seq; }
  bool is_trigger(std::int64_t n) const { return triggers(n) != 0; }
};

/// The losses of one batch of N tokens.
template <typename T>
struct LossSample {
  View<const T, 1> token_losses;         ///< (N)
  View<const std::int32_t, 1> targets;   ///< (N) layers::kIgnoredTarget where a token does not count
  View<const std::uint8_t, 1> triggers;  ///< (N) nonzero at triggers; absent on tasks without

  std::int64_t tokens() const { return targets.shape[0]; }
};

/// One value for each figure of a metric, in their order.
using Values = std::vector<std::optional<double>>;

/// A metric's running sums over the batches of an evaluation. It is called for the inputs that the metric names: not
/// for gates where the model has none, not for Scope::triggers where the task has none.
template <typename T>
class Sums {
 public:
  virtual ~Sums() = default;
  virtual void add_layer(const LayerSample<T>& /*sample*/) {}
  virtual void add_losses(const LossSample<T>& /*sample*/) {}
  /// For Scope::layers and Scope::layers_and_mean.
  virtual Values of_layer(std::int64_t /*layer*/) const { return {}; }
  /// For Metric::of_heads: those of a query head, null where it has none of its own.
  virtual Values of_head(std::int64_t /*layer*/, std::int64_t /*head*/) const { return {}; }
  /// For Scope::model and Scope::triggers.
  virtual Values of_model() const { return {}; }
};

/// Where a metric's figures stand.
enum class Scope {
  model,            ///< of the whole model
  layers,           ///< of each layer
  layers_and_mean,  ///< of each layer, and their mean of the whole model
  triggers,         ///< of the whole model, on tasks with triggers: under "backcopy"
};

/// How `headgate eval` heads the figures of a metric of Scope::triggers: it has two, at triggers and elsewhere, or one.
struct TriggerHeads {
  std::string_view one_model{};  ///< two figures: a column's head. One: what the number is, on a line of its own
  std::string_view compared{};   ///< above the metric's columns where models are compared
  int indent = 0;                ///< of `compared`, from the left of the first column
};

/// Makes a metric's sums for a model.
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
  std::string_view name{};        ///< for `headgate eval --metrics`
  std::string_view definition{};  ///< formula and units, as docs/reference/training.md has it
  std::span<const Figure> figures{};
  Scope scope = Scope::layers_and_mean;
  Inputs inputs{};
  bool of_heads = false;  ///< its figures of layers stand for each query head too
  SumsMaker sums{};
  bool by_default = true;  ///< part of every evaluation; false for what costs too much to be
  TriggerHeads heads{};    ///< for Scope::triggers
  /// A line above the tables of `headgate eval`. Null: none.
  std::string (*headline)(const FigureRow& row) = nullptr;
  /// What `headgate train` prints of an evaluation: all of these in a row, so that each begins with what separates it
  /// from the one before. Null: nothing.
  std::string (*training_text)(const FigureRow& row) = nullptr;
};

}  // namespace headgate::metrics
