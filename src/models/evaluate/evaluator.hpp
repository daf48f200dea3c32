// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "models/decoder/decoder.hpp"
#include "models/evaluate/registry.hpp"

// Measures a model while it is evaluated, layer by layer from q, k and the log-sum-exp. Attention on token 0 needs no
// T×S buffer.

namespace headgate::metrics {

/// Holds the figures. A NaN in a model's activations makes each figure that it reaches NaN.
struct Report {
  MetricList metrics;  ///< those asked for, without those of linear attention for models without it
  FigureRow overall;
  std::vector<FigureRow> layers;
  std::vector<std::vector<FigureRow>> heads;  ///< by layer and head, for Metric::of_heads
  std::optional<FigureRow> backcopy;          ///< figures of Scope::triggers, if batches name their triggers
};

/// Returns how a decoder whose sequences are in parts of `tokens` must walk them for these metrics.
models::PartOptions parts_of(std::int64_t tokens, const MetricList& metrics);

/// Evaluates a model on batches, one after the other, and accumulates.
template <typename T>
class Evaluator : private models::LayerObserver<T> {
 public:
  /// `decoder` must outlive the evaluator. Metrics use its context too. Those of linear attention are left out for
  /// models without it.
  Evaluator(models::SequenceDecoder<T>& decoder, const MetricList& metrics);

  /// tokens(N), targets(N) as in Decoder::loss. triggers(N), if not null, is nonzero where the position's token is a
  /// trigger; either every batch has triggers or none has.
  void add(const T* parameters, const std::int32_t* tokens, const std::int32_t* targets,
           const std::uint8_t* triggers = nullptr);

  Report report() const;

  /// Returns the bytes that an evaluator allocates beside its decoder's.
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
  View<const std::uint8_t, 1> triggers_;  // of the current batch
  View<const std::int32_t, 1> targets_;   // likewise

  std::vector<T> token_losses_;              // (N), if asked for, like the next four
  std::vector<double> first_token_weights_;  // (Hq,N)
  std::vector<double> entropies_;            // (Hq,N)
  std::vector<T> gates_;                     // (N,width) g(z)
  std::vector<double> rule_;                 // RuleStatistics, one after the other
};

}  // namespace headgate::metrics
