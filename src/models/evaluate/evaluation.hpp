// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/data/data.hpp"
#include "models/decoder/decoder.hpp"
#include "models/evaluate/comparison.hpp"
#include "models/evaluate/evaluator.hpp"
#include "models/layers/activation_rounding.hpp"

namespace headgate::train {

/// Compares the loss and the time of a model with and without a gate threshold. With a threshold, attention skips query
/// rows whose gates are below it.
struct ThresholdComparison {
  struct Pass {
    double loss_nats = 0.0;
    double seconds = 0.0;            ///< duration of the forward passes, which compute the loss but no metrics
    double attention_seconds = 0.0;  ///< part of `seconds` spent in attention_forward
  };
  double threshold = 0.0;
  double closed_share = 0.0;  ///< fraction of query rows that were skipped, over all heads and layers
  Pass with{}, without{};
};

struct Evaluation {
  metrics::Report report;
  std::int64_t tokens = 0;   ///< number of tokens evaluated
  std::int64_t seq_len = 0;  ///< number of tokens per sequence, which affects metrics of attention
  /// Number of text bytes that the targets represent. Empty if each token is a byte, or if the number is unknown.
  std::optional<std::int64_t> text_bytes = std::nullopt;
  std::optional<ThresholdComparison> threshold = std::nullopt;
  std::vector<Comparison> comparisons{};
};

/// Selects the held-out sequences of an evaluation, and how the model runs. Evaluates `batches` batches of `batch`
/// sequences each, which are spread evenly over all held-out sequences.
struct EvaluationPlan {
  std::int64_t batch = 1;
  std::int64_t batches = 1;
  /// Longest part of a sequence that is processed at a time, in tokens (see models::PartOptions::tokens).
  std::int64_t part = 0;
  models::ModelPrecision precision = models::ModelPrecision::f32;
  DType cache = DType::none;     ///< i8: compare_rounded() rounds keys and values to int8; none: it does not
  std::int64_t cache_first = 0;  ///< tokens at the start of a sequence that `cache` leaves unrounded
  std::vector<layers::ActivationRounding> activations{};  ///< activation roundings for compare_rounded()
};

/// Plans the evaluation of min(sequences, held_out) sequences, at least one, in batches of at most `max_batch`
/// sequences. Sequences that do not fill a batch are omitted. Of all batch sizes above half of the largest, chooses the
/// one that omits the fewest sequences. Prefers larger batches if several sizes omit equally many.
EvaluationPlan plan_evaluation(std::int64_t held_out, std::int64_t sequences, std::int64_t max_batch);

/// Returns the memory in bytes that an evaluation allocates, listed by purpose. Includes the memory of
/// compare_rounded(). If `reference`, the config of a reference model, is not null, also includes the memory of
/// compare_with(). Parameters are not included. Throws Error if the sizes overflow.
std::vector<models::MemoryItem> evaluation_memory(const models::DecoderConfig& config, const SequenceSource& source,
                                                  const EvaluationPlan& plan, const metrics::MetricList& metrics,
                                                  const models::DecoderConfig* reference = nullptr);

/// Evaluates models that share one configuration on held-out sequences.
class HeldOutEvaluator {
 public:
  /// Computes the given metrics that apply to the source's task. `source` must outlive the evaluator. Throws Error if
  /// the model's vocabulary is too small for the data.
  HeldOutEvaluator(const models::DecoderConfig& config, const SequenceSource& source, const EvaluationPlan& plan,
                   const metrics::MetricList& metrics, const ExecutionContext& context = {});

  /// Evaluates a model. Calls progress(fraction) after each batch with the fraction of batches that are done.
  template <class Progress>
  Evaluation evaluate(const float* parameters, const Progress& progress) {
    metrics::Evaluator<float> evaluator(*decoder_, metrics_);
    for (std::int64_t i = 0; i < plan_.batches; ++i) {
      add_batch(evaluator, parameters, i);
      progress(static_cast<double>(i + 1) / static_cast<double>(plan_.batches));
    }
    return finished(evaluator.report());
  }
  /// Sets out(batches · batch, T, vocab) to the log-probability in nats of each token of the vocabulary at each
  /// position.
  void log_probabilities(float* out, const float* parameters);

  Evaluation evaluate(const float* parameters) {
    return evaluate(parameters, [](double) {});
  }

  /// Evaluates each batch with and without the threshold, in alternating order. The model's gate must satisfy
  /// layers::can_skip_attention.
  ThresholdComparison compare_threshold(const float* parameters, double threshold);

  /// Compares the unrounded model with rounded versions of it. Makes one comparison for EvaluationPlan::cache, then one
  /// for each element of EvaluationPlan::activations. Evaluates one sequence at a time. Holds the log-probabilities of
  /// at most kComparedTokens tokens per model.
  std::vector<Comparison> compare_rounded(const float* parameters);
  /// Compares a model with the model `reference`, one sequence at a time. Throws Error if their vocabulary sizes
  /// differ.
  Divergence compare_with(const models::DecoderConfig& reference, const float* reference_parameters,
                          const float* parameters);

 private:
  Evaluation finished(metrics::Report report) const;
  std::int64_t sequence_of(std::int64_t i) const;
  void read_batch(std::int64_t index);
  double loss(const float* parameters, layers::AttentionSkip& skip, ThresholdComparison::Pass& pass);
  std::vector<Divergence> compare(const ComparedModel& reference, const std::vector<ComparedModel>& others);
  void add_batch(metrics::Evaluator<float>& evaluator, const float* parameters, std::int64_t index);

  const SequenceSource& source_;
  EvaluationPlan plan_;
  metrics::MetricList metrics_;
  std::unique_ptr<models::SequenceDecoder<float>> decoder_;
  std::vector<std::int32_t> tokens_;   // (batch,T)
  std::vector<std::int32_t> targets_;  // (batch,T)
  // (batch,T) nonzero at trigger tokens (SequenceSource::is_trigger). Empty if the task has none.
  std::vector<std::uint8_t> triggers_;
};

/// Describes where a report first has a number that is not finite: "in layer 1" or "in the loss", for example. Returns
/// an empty string if all numbers are finite.
std::string first_not_finite(const metrics::Report& report);

/// Says whether the JSON contains the results of each head.
enum class HeadFigures { left_out, included };

/// JSON key of the metrics that compare trigger tokens with other tokens (Scope::triggers).
inline constexpr std::string_view kByTriggerKey = "backcopy";

/// Returns the JSON that `headgate eval --json` prints. Its top level has:
/// - the results for the whole model
/// - `layers`: an object with the results of each layer, and with a list `heads` if HeadFigures::included
/// - `tokens` and `seq_len`
/// - `backcopy`, for tasks with triggers
/// - `text_bytes`, if it is known
/// - `gate_threshold`, if a threshold was compared
/// - the keys of add_comparisons()
nlohmann::ordered_json evaluation_json(const Evaluation& evaluation, HeadFigures heads = HeadFigures::left_out);

}  // namespace headgate::train
