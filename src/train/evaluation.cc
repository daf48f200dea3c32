// SPDX-License-Identifier: Apache-2.0
#include "train/evaluation.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/check.hpp"

namespace headgate::train {

namespace {

using nlohmann::ordered_json;

ordered_json optional_json(const std::optional<double>& value) { return value ? ordered_json(*value) : ordered_json(); }

/// null where there is no attention to speak of.
ordered_json attention_json(double value, bool has_attention) {
  return has_attention ? ordered_json(value) : ordered_json();
}

ordered_json figures_json(const models::Figures& figures, bool has_attention) {
  const models::AttentionStatistics& statistics = figures.attention;
  ordered_json out = {{"loss_nats", figures.loss.nats},
                      {"bits_per_byte", figures.loss.bits_per_token},
                      {"perplexity", figures.loss.perplexity}};
  out["first_token_attention"] = attention_json(statistics.first_token_attention, has_attention);
  out["first_token_attention_uniform"] = attention_json(statistics.first_token_attention_uniform, has_attention);
  out["sink_rate"] = attention_json(statistics.sink_rate, has_attention);
  out["massive_activation"] = statistics.massive_activation;
  out["gate_mean"] = optional_json(statistics.gate_mean);
  out["gate_below_0.1"] = optional_json(statistics.gate_below_tenth);
  out["gate_below_0.01"] = optional_json(statistics.gate_below_hundredth);
  return out;
}

ordered_json backcopy_json(const models::BackcopyReport& report, bool has_attention) {
  return {{"bos_attention_trigger", attention_json(report.bos_attention_trigger, has_attention)},
          {"bos_attention_other", attention_json(report.bos_attention_other, has_attention)},
          {"gate_trigger", optional_json(report.gate_trigger)},
          {"gate_other", optional_json(report.gate_other)},
          {"loss_trigger", attention_json(report.loss_trigger, has_attention)},  // the only token is BOS
          {"loss_other", report.loss_other},
          {"bos_value_norm_ratio", attention_json(report.bos_value_norm_ratio, has_attention)}};
}

}  // namespace

EvaluationPlan plan_evaluation(std::int64_t held_out, std::int64_t sequences, std::int64_t max_batch) {
  const std::int64_t wanted = std::max<std::int64_t>(1, std::min(held_out, sequences));
  const std::int64_t largest = std::max<std::int64_t>(1, std::min(wanted, max_batch));
  std::int64_t best = largest;
  for (std::int64_t batch = largest; 2 * batch > largest; --batch) {
    if (wanted % batch < wanted % best) best = batch;
  }
  return {best, wanted / best};
}

std::vector<models::MemoryItem> evaluation_memory(const models::DecoderConfig& config, const SequenceSource& source,
                                                  const EvaluationPlan& plan) {
  const models::BatchShape shape{plan.batch, source.seq_len()};
  auto items = models::Decoder<float>::planned_memory(config, shape, models::Purpose::evaluate);
  const std::size_t of_token = 2 * sizeof(std::int32_t) + (source.has_triggers() ? 1 : 0);
  items.push_back({"figures", models::Evaluator<float>::planned_bytes(config, shape)});
  items.push_back({"tokens and targets", static_cast<std::size_t>(shape.batch * shape.seq) * of_token});
  return items;
}

HeldOutEvaluator::HeldOutEvaluator(const models::DecoderConfig& config, const SequenceSource& source,
                                   const EvaluationPlan& plan)
    : source_(source),
      plan_(plan),
      decoder_(config, {plan.batch, source.seq_len()}, models::Purpose::evaluate),
      tokens_(static_cast<std::size_t>(plan.batch * source.seq_len())),
      targets_(tokens_.size()),
      triggers_(source.has_triggers() ? tokens_.size() : 0) {
  require(config.vocab >= source.vocab(), "the model's vocabulary has {} tokens but the data {}", config.vocab,
          source.vocab());
}

void HeldOutEvaluator::add_batch(models::Evaluator<float>& evaluator, const float* parameters, std::int64_t index) {
  const std::int64_t T = source_.seq_len();
  const std::int64_t used = plan_.batch * plan_.batches;
  const std::int64_t held_out = source_.held_out_count();
  for (std::int64_t b = 0; b < plan_.batch; ++b) {
    const std::int64_t i = index * plan_.batch + b;
    // i · held_out / used without overflow.
    const std::int64_t at = held_out / used * i + held_out % used * i / used;
    source_.held_out_sequence(tokens_.data() + b * T, targets_.data() + b * T, at);
  }
  for (std::size_t i = 0; i < triggers_.size(); ++i) triggers_[i] = source_.is_trigger(tokens_[i]) ? 1 : 0;
  evaluator.add(parameters, tokens_.data(), targets_.data(), triggers_.empty() ? nullptr : triggers_.data());
}

ordered_json evaluation_json(const Evaluation& evaluation) {
  const bool has_attention = evaluation.has_attention();
  ordered_json out = figures_json(evaluation.report.overall, has_attention);
  out["layers"] = ordered_json::array();
  for (const models::Figures& layer : evaluation.report.layers)
    out["layers"].push_back(figures_json(layer, has_attention));
  if (evaluation.backcopy) out["backcopy"] = backcopy_json(*evaluation.backcopy, has_attention);
  out["tokens"] = evaluation.tokens;
  return out;
}

}  // namespace headgate::train
