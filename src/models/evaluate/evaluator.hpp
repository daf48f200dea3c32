// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "models/decoder/decoder.hpp"
#include "models/evaluate/registry.hpp"

// Computes a model's metrics layer by layer during evaluation. Recomputes attention weights from q, k and the
// logsumexp, so that the attention matrix is never stored.

namespace headgate::metrics {

/// Holds the results of an evaluation. A NaN in the activations makes every number computed from it NaN.
struct Report {
  MetricList metrics;  ///< requested metrics, without metrics of linear attention if the model has no such layer
  FigureRow overall;
  std::vector<FigureRow> layers;
  /// Element [layer][head] holds the results of one head, from the metrics with Metric::of_heads.
  std::vector<std::vector<FigureRow>> heads;
  /// Results of the metrics with Scope::triggers. Absent if the task has no trigger tokens.
  std::optional<FigureRow> backcopy;
};

/// Returns the options of a decoder that computes these metrics. The decoder processes `tokens` tokens at a time.
models::PartOptions parts_of(std::int64_t tokens, const MetricList& metrics);

/// Evaluates a model batch by batch and accumulates its metrics.
template <typename T>
class Evaluator : private models::LayerObserver<T> {
 public:
  /// Drops metrics of linear attention from `metrics` if the model has no such layer. `decoder` must outlive the
  /// evaluator. Metrics are computed with the decoder's context.
  Evaluator(models::SequenceDecoder<T>& decoder, const MetricList& metrics);

  /// Adds a batch of N tokens. `tokens` (N) and `targets` (N) are as in Decoder::loss. `triggers` (N) is nonzero at
  /// trigger tokens, after which the bigram_backcopy task copies a token. Either all batches have `triggers`, or none
  /// has.
  void add(const T* parameters, const std::int32_t* tokens, const std::int32_t* targets,
           const std::uint8_t* triggers = nullptr);

  Report report() const;

  /// Returns the bytes that an evaluator allocates, not counting its decoder.
  static std::size_t planned_bytes(const models::DecoderConfig& config, models::BatchShape shape,
                                   const MetricList& metrics, const models::PartOptions& parts = {});

 private:
  struct Running {
    const Metric* metric;
    std::unique_ptr<Sums<T>> sums;
  };

  models::Taps taps() const override;
  void after_layer(const models::LayerView<T>& view) override;
  View<const double, 2> first_token_weights_of(const models::LayerView<T>& view);
  View<const double, 2> entropies_of(const models::LayerView<T>& view);
  View<const T, 2> gates_of(const models::LayerView<T>& view);
  RuleStatistics rule_statistics_of(const models::LayerView<T>& view);
  void add_figures(Report& out, const Running& running) const;

  models::SequenceDecoder<T>& decoder_;
  Inputs inputs_;
  std::vector<Running> running_;
  bool any_triggers_ = false;
  bool any_plain_ = false;
  View<const std::uint8_t, 1> triggers_;  // (N) of the current batch: the argument `triggers` of add()
  View<const std::int32_t, 1> targets_;   // (N) of the current batch: the argument `targets` of add()

  // Buffers for the members of LossSample and LayerSample. A buffer is empty if no metric reads it. token_losses_ has
  // shape (N).
  std::vector<T> token_losses_;
  std::vector<double> first_token_weights_;  // (Hq,N)
  std::vector<double> entropies_;            // (Hq,N)
  std::vector<T> gates_;                     // (N,width) g(z)
  std::vector<double> rule_;                 // the arrays that LayerSample::rule views, one after another
};

}  // namespace headgate::metrics
