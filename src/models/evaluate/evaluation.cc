// SPDX-License-Identifier: Apache-2.0
#include "models/evaluate/evaluation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "library/core/check.hpp"
#include "library/core/stopwatch.hpp"
#include "models/evaluate/loss.hpp"
#include "models/evaluate/token_ranges.hpp"
#include "models/layers/cross_entropy.hpp"

namespace headgate::train {

namespace {

using nlohmann::ordered_json;

ordered_json row_json(const metrics::FigureRow& row) {
  ordered_json out = ordered_json::object();
  for (const metrics::FigureRow::Entry& entry : row.entries()) {
    ordered_json& value = out[std::string(entry.figure->key)];
    if (!entry.value) continue;
    value = entry.figure->is_index ? ordered_json(std::llround(*entry.value)) : ordered_json(*entry.value);
  }
  return out;
}

ordered_json rows_json(const std::vector<metrics::FigureRow>& rows) {
  ordered_json out = ordered_json::array();
  for (const metrics::FigureRow& row : rows) out.push_back(row_json(row));
  return out;
}

/// Returns the number of tokens that a comparison processes at a time.
std::int64_t compared_tokens(const EvaluationPlan& plan, std::int64_t seq_len) {
  return std::min({kComparedTokens, seq_len, plan.part > 0 ? plan.part : kComparedTokens});
}

/// Holds one comparison with a rounded model, and the decoder options that select the rounding.
struct RoundedRun {
  Comparison comparison;
  models::PartOptions parts;
};

/// Returns the comparisons that compare_rounded() makes, in order.
std::vector<RoundedRun> rounded_runs(const EvaluationPlan& plan, std::int64_t seq_len) {
  const std::int64_t part = compared_tokens(plan, seq_len);
  std::vector<RoundedRun> out;
  if (plan.cache != DType::none) {
    out.push_back({{Compared::cache, dtype_name(plan.cache), {}, plan.cache_first},
                   {.tokens = part, .cache = plan.cache, .cache_first = plan.cache_first}});
  }
  for (const layers::ActivationRounding rounding : plan.activations) {
    out.push_back({{Compared::activations, std::string(word_of(rounding)), {}},
                   {.tokens = spans_tokens(rounding) ? seq_len : part, .activations = rounding}});
  }
  return out;
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
                                                  const EvaluationPlan& plan, const metrics::MetricList& metrics,
                                                  const models::DecoderConfig* reference) {
  const models::BatchShape shape{plan.batch, source.seq_len()};
  const metrics::MetricList applying = metrics::that_apply(metrics, source.has_triggers());
  const models::PartOptions parts = metrics::parts_of(plan.part, applying);
  auto items = models::planned_memory(config, shape, models::Purpose::evaluate, plan.precision, parts);
  const std::size_t of_token = 2 * sizeof(std::int32_t) + (source.has_triggers() ? 1 : 0);
  items.push_back({"figures", metrics::Evaluator<float>::planned_bytes(config, shape, applying, parts)});
  items.push_back({"tokens and targets", shape.batch * shape.seq * of_token});
  const std::int64_t part = compared_tokens(plan, shape.seq);
  const auto add_models = [&](const models::DecoderConfig& of_reference, const std::vector<RoundedRun>& others) {
    if (others.empty()) return;
    const auto add = [&](const models::DecoderConfig& of, const models::PartOptions& options) {
      auto more = models::planned_memory(of, {1, shape.seq}, models::Purpose::evaluate, plan.precision, options);
      std::move(more.begin(), more.end(), std::back_inserter(items));
    };
    add(of_reference, {.tokens = part});
    for (const RoundedRun& other : others) add(config, other.parts);
    items.push_back({"log-probabilities compared", 2 * sizeof(float) * part * config.vocab});
  };
  add_models(config, rounded_runs(plan, shape.seq));
  if (reference != nullptr) add_models(*reference, {{{}, {.tokens = part}}});
  return items;
}

HeldOutEvaluator::HeldOutEvaluator(const models::DecoderConfig& config, const SequenceSource& source,
                                   const EvaluationPlan& plan, const metrics::MetricList& metrics,
                                   const ExecutionContext& context)
    : source_(source),
      plan_(plan),
      metrics_(metrics::that_apply(metrics, source.has_triggers())),
      decoder_(models::make_decoder(config, {plan.batch, source.seq_len()}, models::Purpose::evaluate, plan.precision,
                                    context, metrics::parts_of(plan.part, metrics_))),
      tokens_(plan.batch * source.seq_len()),
      targets_(tokens_.size()),
      triggers_(source.has_triggers() ? tokens_.size() : 0) {
  require(config.vocab >= source.vocab(), "{}: a token id is {} but the model's vocabulary has {} tokens",
          source.name(), source.vocab() - 1, config.vocab);
}

/// Reads a batch into tokens_ and targets_.
void HeldOutEvaluator::read_batch(std::int64_t index) {
  const std::int64_t T = source_.seq_len();
  for (std::int64_t b = 0; b < plan_.batch; ++b) {
    source_.held_out_sequence(tokens_.data() + b * T, targets_.data() + b * T, sequence_of(index * plan_.batch + b));
  }
}

/// Returns which held-out sequence is the evaluation's sequence i. The evaluated sequences are spread evenly over all
/// held-out sequences.
std::int64_t HeldOutEvaluator::sequence_of(std::int64_t i) const {
  const std::int64_t used = plan_.batch * plan_.batches;
  const std::int64_t held_out = source_.held_out_count();
  return held_out / used * i + held_out % used * i / used;  // computes i · held_out / used without overflow
}

/// Adds the number of tokens to a report. If tokens are not bytes, does two more things:
/// - Adds the number of text bytes, if it is known.
/// - Converts bits_per_byte from bits per token, as the metrics compute it, to bits per text byte. Sets it to null if
///   the number of text bytes is unknown.
Evaluation HeldOutEvaluator::finished(metrics::Report report) const {
  const std::int64_t sequences = plan_.batch * plan_.batches;
  Evaluation out{std::move(report), sequences * source_.seq_len(), source_.seq_len()};
  if (source_.tokens_are_bytes()) return out;
  std::optional<TargetText> all = TargetText{};
  for (std::int64_t i = 0; i < sequences && all; ++i) {
    const std::optional<TargetText> text = source_.target_text(sequence_of(i));
    all = text ? std::optional(TargetText{all->targets + text->targets, all->bytes + text->bytes}) : std::nullopt;
  }
  const auto set_bits = [&](metrics::FigureRow& row) {
    const std::optional<double> bits = row.find(metrics::kBitsPerByte);
    if (!bits) return;
    const bool known = all && all->bytes > 0;
    const double tokens_per_byte = known ? static_cast<double>(all->targets) / static_cast<double>(all->bytes) : 0.0;
    row.set(metrics::kBitsPerByte, known ? std::optional(*bits * tokens_per_byte) : std::nullopt);
  };
  set_bits(out.report.overall);
  std::for_each(out.report.layers.begin(), out.report.layers.end(), set_bits);
  if (all) out.text_bytes = all->bytes;
  return out;
}

void HeldOutEvaluator::log_probabilities(float* out, const float* parameters) {
  const auto count = static_cast<std::int64_t>(tokens_.size()) * decoder_->config().vocab;
  for (std::int64_t i = 0; i < plan_.batches; ++i) {
    read_batch(i);
    decoder_->log_probabilities(out + i * count, parameters, tokens_.data());
  }
}

void HeldOutEvaluator::add_batch(metrics::Evaluator<float>& evaluator, const float* parameters, std::int64_t index) {
  read_batch(index);
  for (std::size_t i = 0; i < triggers_.size(); ++i) triggers_[i] = source_.is_trigger(tokens_[i]) ? 1 : 0;
  evaluator.add(parameters, tokens_.data(), targets_.data(), triggers_.empty() ? nullptr : triggers_.data());
}

/// Returns the loss of the current batch in nats, summed over its targets. Adds the elapsed time to pass.seconds.
double HeldOutEvaluator::loss(const float* parameters, layers::AttentionSkip& skip, ThresholdComparison::Pass& pass) {
  const Stopwatch watch;
  const double mean = decoder_->loss(parameters, tokens_.data(), targets_.data(), nullptr, nullptr, &skip);
  pass.seconds += watch.seconds();
  pass.attention_seconds = skip.attention_seconds;
  const auto ignored = std::count(targets_.begin(), targets_.end(), layers::kIgnoredTarget);
  return mean * static_cast<double>(static_cast<std::int64_t>(targets_.size()) - ignored);
}

ThresholdComparison HeldOutEvaluator::compare_threshold(const float* parameters, double threshold) {
  ThresholdComparison out;
  out.threshold = threshold;
  layers::AttentionSkip skip, all;
  skip.threshold = threshold;
  double counted = 0.0;
  for (std::int64_t i = 0; i < plan_.batches; ++i) {
    read_batch(i);
    // Alternates which of the two passes runs first, so that clock frequency and caches favour neither.
    if (i % 2 == 0) out.without.loss_nats += loss(parameters, all, out.without);
    out.with.loss_nats += loss(parameters, skip, out.with);
    if (i % 2 == 1) out.without.loss_nats += loss(parameters, all, out.without);
    const auto ignored = std::count(targets_.begin(), targets_.end(), layers::kIgnoredTarget);
    counted += static_cast<double>(static_cast<std::int64_t>(targets_.size()) - ignored);
  }
  out.with.loss_nats /= counted;
  out.without.loss_nats /= counted;
  out.closed_share = skip.closed_share();
  return out;
}

/// Runs all models on each sequence, in parts of at most kComparedTokens tokens. Compares each model of `others` with
/// `reference`.
std::vector<Divergence> HeldOutEvaluator::compare(const ComparedModel& reference,
                                                  const std::vector<ComparedModel>& others) {
  const ExecutionContext& context = decoder_->context();
  const std::int64_t T = source_.seq_len(), V = decoder_->config().vocab, P = compared_tokens(plan_, T);
  std::vector<std::unique_ptr<models::SequenceDecoder<float>>> decoders;
  const auto make = [&](const ComparedModel& model) {
    return models::make_decoder(*model.config, {1, T}, models::Purpose::evaluate, plan_.precision, context,
                                model.parts);
  };
  const auto exact = make(reference);
  std::transform(others.begin(), others.end(), std::back_inserter(decoders), make);
  std::vector<float> log_p(static_cast<std::size_t>(P * V)), log_q(log_p.size());
  std::vector<DivergenceSums> sums(others.size());
  for (std::int64_t n = 0; n < plan_.batches * plan_.batch; ++n) {
    if (n % plan_.batch == 0) read_batch(n / plan_.batch);
    const std::int64_t begin = n % plan_.batch * T;
    exact->run(reference.parameters, tokens_.data() + begin);
    for (std::size_t i = 0; i < others.size(); ++i) decoders[i]->run(others[i].parameters, tokens_.data() + begin);
    for (std::int64_t first = 0; first < T; first += P) {
      const std::int64_t count = std::min(P, T - first);
      const View<const std::int32_t, 1> targets(targets_.data() + begin + first, {count});
      exact->some_log_probabilities(log_p.data(), reference.parameters, first, count);
      for (std::size_t i = 0; i < others.size(); ++i) {
        decoders[i]->some_log_probabilities(log_q.data(), others[i].parameters, first, count);
        const View<const float, 2> p(log_p.data(), {count, V}), q(log_q.data(), {count, V});
        sums[i].join(metrics::over_tokens<DivergenceSums>(count, context, [&](DivergenceSums& found, std::int64_t t) {
          if (targets(t) != layers::kIgnoredTarget) found.add(p[t], q[t], targets(t));
        }));
      }
    }
  }
  std::vector<Divergence> out;
  std::transform(sums.begin(), sums.end(), std::back_inserter(out), [](const auto& sum) { return sum.means(); });
  return out;
}

std::vector<Comparison> HeldOutEvaluator::compare_rounded(const float* parameters) {
  const models::DecoderConfig& config = decoder_->config();
  std::vector<Comparison> out;
  std::vector<ComparedModel> others;
  for (const RoundedRun& run : rounded_runs(plan_, source_.seq_len())) {
    out.push_back(run.comparison);
    others.push_back({&config, parameters, run.parts});
  }
  if (out.empty()) return out;
  const models::PartOptions parts{.tokens = compared_tokens(plan_, source_.seq_len())};
  const std::vector<Divergence> found = compare({&config, parameters, parts}, others);
  for (std::size_t i = 0; i < out.size(); ++i) out[i].figures = found[i];
  return out;
}

Divergence HeldOutEvaluator::compare_with(const models::DecoderConfig& reference, const float* reference_parameters,
                                          const float* parameters) {
  const models::DecoderConfig& config = decoder_->config();
  require(reference.vocab == config.vocab, "a reference with a vocabulary of {} tokens, but the model has {}",
          reference.vocab, config.vocab);
  const models::PartOptions parts{.tokens = compared_tokens(plan_, source_.seq_len())};
  return compare({&reference, reference_parameters, parts}, {{&config, parameters, parts}}).front();
}

std::string first_not_finite(const metrics::Report& report) {
  for (std::size_t i = 0; i < report.layers.size(); ++i) {
    const bool heads =
        i >= report.heads.size() || std::all_of(report.heads[i].begin(), report.heads[i].end(), metrics::is_finite);
    if (!heads || !metrics::is_finite(report.layers[i])) return fmt::format("in layer {}", i);
  }
  if (!metrics::is_finite(report.overall)) return "in the loss";
  return report.backcopy && !metrics::is_finite(*report.backcopy) ? "in the figures by trigger" : "";
}

ordered_json evaluation_json(const Evaluation& evaluation, HeadFigures heads) {
  const metrics::Report& report = evaluation.report;
  ordered_json out = row_json(report.overall);
  out["layers"] = rows_json(report.layers);
  for (std::size_t i = 0; i < report.layers.size() && heads == HeadFigures::included; ++i) {
    out["layers"][i]["heads"] = rows_json(report.heads[i]);
  }
  if (report.backcopy) out[std::string(kByTriggerKey)] = row_json(*report.backcopy);
  out["tokens"] = evaluation.tokens;
  out["seq_len"] = evaluation.seq_len;
  if (evaluation.text_bytes) out["text_bytes"] = *evaluation.text_bytes;
  if (const auto& threshold = evaluation.threshold) {
    const auto pass = [&](const ThresholdComparison::Pass& p) {
      return ordered_json{{"loss_nats", p.loss_nats},
                          {"seconds", p.seconds},
                          {"attention_seconds", p.attention_seconds},
                          {"tokens_per_second", static_cast<double>(evaluation.tokens) / p.seconds}};
    };
    out["gate_threshold"] = {{"threshold", threshold->threshold},
                             {"closed_share", threshold->closed_share},
                             {"with", pass(threshold->with)},
                             {"without", pass(threshold->without)}};
  }
  add_comparisons(out, evaluation.comparisons);
  return out;
}

}  // namespace headgate::train
