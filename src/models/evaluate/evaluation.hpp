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
#include "models/evaluate/evaluator.hpp"

namespace headgate::train {

/// Compares a model's loss and time with and without leaving out the attention rows whose gate is closed.
struct ThresholdComparison {
  struct Pass {
    double loss_nats = 0.0;
    double seconds = 0.0;            ///< of forward passes, without metrics
    double attention_seconds = 0.0;  ///< part of `seconds` spent in attention_forward
  };
  double threshold = 0.0;
  double closed_share = 0.0;  ///< of the query rows of all heads and layers
  Pass with{}, without{};
};

struct Evaluation {
  metrics::Report report;
  std::int64_t tokens = 0;   ///< number of tokens evaluated
  std::int64_t seq_len = 0;  ///< tokens of a sequence, on which figures of attention depend
  /// Bytes of text that the targets stand for, if tokens are not bytes and the number is known.
  std::optional<std::int64_t> text_bytes = std::nullopt;
  std::optional<ThresholdComparison> threshold = std::nullopt;
};

/// Says which held-out sequences an evaluation takes, batches of equal size, spread evenly, and how it computes.
struct EvaluationPlan {
  std::int64_t batch = 1;
  std::int64_t batches = 1;
  /// Tokens of a part: models::PartOptions::tokens. Sequences that are longer are walked in parts, in batches of one.
  std::int64_t part = 0;
  models::ModelPrecision precision = models::ModelPrecision::f32;
};

/// Plans the evaluation of at most `sequences` of `held_out` sequences, but at least one, in batches of at most
/// `max_batch`. The size of the batches is chosen to leave out the fewest sequences.
EvaluationPlan plan_evaluation(std::int64_t held_out, std::int64_t sequences, std::int64_t max_batch);

/// Returns the memory of an evaluation in bytes, without the parameters, by purpose. Allocates nothing. Throws Error if
/// the sizes overflow.
std::vector<models::MemoryItem> evaluation_memory(const models::DecoderConfig& config, const SequenceSource& source,
                                                  const EvaluationPlan& plan, const metrics::MetricList& metrics);

/// Evaluates models of one shape on held-out sequences.
class HeldOutEvaluator {
 public:
  /// `source` must outlive the evaluator. Computes those of `metrics` that apply to the source's task. Throws Error if
  /// the model's vocabulary is too small for the data.
  HeldOutEvaluator(const models::DecoderConfig& config, const SequenceSource& source, const EvaluationPlan& plan,
                   const metrics::MetricList& metrics, const ExecutionContext& context = {});

  /// Calls progress(fraction) after each batch with the fraction done.
  template <class Progress>
  Evaluation evaluate(const float* parameters, const Progress& progress) {
    metrics::Evaluator<float> evaluator(*decoder_, metrics_);
    for (std::int64_t i = 0; i < plan_.batches; ++i) {
      add_batch(evaluator, parameters, i);
      progress(static_cast<double>(i + 1) / static_cast<double>(plan_.batches));
    }
    return finished(evaluator.report());
  }
  /// out(batches · batch, T, vocab) = log p of every token at each position, in nats.
  void log_probabilities(float* out, const float* parameters);

  Evaluation evaluate(const float* parameters) {
    return evaluate(parameters, [](double) {});
  }

  /// Evaluates each batch of the same sequences with and without the threshold, alternately. For models of
  /// layers::can_skip_attention.
  ThresholdComparison compare_threshold(const float* parameters, double threshold);

 private:
  Evaluation finished(metrics::Report report) const;
  std::int64_t sequence_of(std::int64_t i) const;
  void read_batch(std::int64_t index);
  double loss(const float* parameters, layers::AttentionSkip& skip, ThresholdComparison::Pass& pass);
  void add_batch(metrics::Evaluator<float>& evaluator, const float* parameters, std::int64_t index);

  const SequenceSource& source_;
  EvaluationPlan plan_;
  metrics::MetricList metrics_;
  std::unique_ptr<models::SequenceDecoder<float>> decoder_;
  std::vector<std::int32_t> tokens_;    // (batch,T)
  std::vector<std::int32_t> targets_;   // (batch,T)
  std::vector<std::uint8_t> triggers_;  // (batch,T), empty for tasks without triggers
};

/// Returns where a report first has a number that is not finite: "in layer 1", "in the loss"; empty if all are finite.
std::string first_not_finite(const metrics::Report& report);

/// Whether to write the figures of each head too.
enum class HeadFigures { left_out, included };

/// Key of the figures by trigger in that JSON.
inline constexpr std::string_view kByTriggerKey = "backcopy";

/// Returns what `headgate eval --json` prints: the figures of the whole model by their keys; layers, a list of objects,
/// each with a list `heads` if included; backcopy if the task has triggers; tokens; seq_len; text_bytes if known;
/// gate_threshold if one was compared.
nlohmann::ordered_json evaluation_json(const Evaluation& evaluation, HeadFigures heads = HeadFigures::left_out);

}  // namespace headgate::train
