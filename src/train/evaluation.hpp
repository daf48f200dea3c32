// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "metrics/evaluator.hpp"
#include "models/decoder.hpp"
#include "train/data.hpp"

namespace headgate::train {

struct Evaluation {
  metrics::Report report;
  std::int64_t tokens = 0;  ///< that the figures are over
};

/// Which held-out sequences an evaluation takes: batches of equal size, spread evenly.
struct EvaluationPlan {
  std::int64_t batch = 1;
  std::int64_t batches = 1;
};

/// At most `sequences` (but one at least) of `held_out`, in batches of at most `max_batch`. The batch is chosen so that
/// the fewest are left over.
EvaluationPlan plan_evaluation(std::int64_t held_out, std::int64_t sequences, std::int64_t max_batch);

/// What evaluating takes beside the parameters, by purpose; nothing is taken. Throws Error for sizes beyond all memory.
std::vector<models::MemoryItem> evaluation_memory(const models::DecoderConfig& config, const SequenceSource& source,
                                                  const EvaluationPlan& plan, const metrics::MetricList& metrics);

/// Evaluates a model of one shape again and again.
class HeldOutEvaluator {
 public:
  /// `source` is used for the evaluator's life. Of `metrics`, those that its task has are evaluated. Throws Error where
  /// the model's vocabulary is too small for it.
  HeldOutEvaluator(const models::DecoderConfig& config, const SequenceSource& source, const EvaluationPlan& plan,
                   const metrics::MetricList& metrics, const ExecutionContext& context = {});

  /// `progress`, if given, is called after each batch with the share that is done.
  template <class Progress>
  Evaluation evaluate(const float* parameters, const Progress& progress) {
    metrics::Evaluator<float> evaluator(decoder_, metrics_);
    for (std::int64_t i = 0; i < plan_.batches; ++i) {
      add_batch(evaluator, parameters, i);
      progress(static_cast<double>(i + 1) / static_cast<double>(plan_.batches));
    }
    return {evaluator.report(), plan_.batches * plan_.batch * source_.seq_len()};
  }
  Evaluation evaluate(const float* parameters) {
    return evaluate(parameters, [](double) {});
  }

 private:
  void add_batch(metrics::Evaluator<float>& evaluator, const float* parameters, std::int64_t index);

  const SequenceSource& source_;
  EvaluationPlan plan_;
  metrics::MetricList metrics_;
  models::Decoder<float> decoder_;
  std::vector<std::int32_t> tokens_;    // (batch,T)
  std::vector<std::int32_t> targets_;   // (batch,T)
  std::vector<std::uint8_t> triggers_;  // (batch,T), empty for tasks without
};

/// What `headgate eval --json` prints: the figures of the whole model by their keys, layers (a list of objects),
/// backcopy where the task has triggers, tokens.
nlohmann::ordered_json evaluation_json(const Evaluation& evaluation);

}  // namespace headgate::train
