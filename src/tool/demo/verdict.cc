// SPDX-License-Identifier: Apache-2.0
#include "tool/demo/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/evaluate/first_token_attention.hpp"
#include "models/evaluate/first_token_attention_by_trigger.hpp"
#include "models/evaluate/first_token_attention_gated_by_trigger.hpp"
#include "models/evaluate/first_token_attention_uniform.hpp"
#include "models/evaluate/first_token_value_norm_ratio.hpp"
#include "models/evaluate/gate_by_trigger.hpp"
#include "models/evaluate/loss.hpp"
#include "models/evaluate/loss_by_trigger.hpp"
#include "models/evaluate/massive_activation.hpp"
#include "models/evaluate/sink_rate.hpp"
#include "models/io/units.hpp"

namespace headgate::demo {

namespace {

using console::percent_text;
using metrics::FigureRow;

bool has_learnt(const FigureRow& report) { return report.at(metrics::kLossTrigger) < kNotLearnt; }

/// Returns a clause that says where the gate opens, with its scores; empty without a gate.
std::string gate_clause(const FigureRow& report) {
  if (!report.find(metrics::kGateTrigger) || !report.find(metrics::kGateOther)) return "";
  const double after = report.at(metrics::kGateTrigger);
  const double elsewhere = report.at(metrics::kGateOther);
  const std::string scores = fmt::format("{:.2f} there, {:.2f} after a trigger", elsewhere, after);
  if (elsewhere <= 0.5 * after) return fmt::format("; the gate closes where there is nothing to copy ({})", scores);
  if (after <= 0.5 * elsewhere) return fmt::format("; the gate opens where there is nothing to copy ({})", scores);
  return fmt::format("; the gate hardly differs between the two ({})", scores);
}

/// Returns the figure for the attention to BOS that reaches the output: after the gate, if there is one.
const metrics::Figure& passing_figure(const FigureRow& report) {
  return report.find(metrics::kFirstTokenAttentionGatedOther) ? metrics::kFirstTokenAttentionGatedOther
                                                              : metrics::kFirstTokenAttentionOther;
}

std::string baseline_sentence(const Spread& runs) {
  const std::string begin = fmt::format("Without a gate {} of the attention goes to BOS where there is nothing to copy",
                                        percent(runs, metrics::kFirstTokenAttentionOther));
  const FigureRow& report = runs.mean;
  if (report.at(metrics::kFirstTokenAttentionOther) < metrics::kSinkThreshold) return begin + ": no sink here. ";
  constexpr double kSmallNorm = 0.5;
  const double norm = report.at(metrics::kFirstTokenValueNormRatio);
  if (norm < kSmallNorm) {
    return fmt::format("{}, which adds little: BOS's value has {:.2f} of the norm of the others. ", begin, norm);
  }
  return fmt::format("{}, although BOS's value is not small ({:.2f} of the norm of the others). ", begin, norm);
}

std::string gated_sentence(const std::string& name, SinkEffect effect, const Spread& runs) {
  const FigureRow& report = runs.mean;
  if (effect == SinkEffect::not_learnt) {
    return fmt::format(
        "With {} gate the model has not learnt to copy (loss {:.2f} after a trigger), so its attention "
        "is not meaningful yet. ",
        name, report.at(metrics::kLossTrigger));
  }
  const char* compared = effect == SinkEffect::small      ? ", only somewhat less"
                         : effect == SinkEffect::none     ? ": that gate makes no clear difference"
                         : effect == SinkEffect::opposite ? ", more than without one"
                                                          : "";
  const metrics::Figure& figure = passing_figure(report);
  const char* passes =
      &figure == &metrics::kFirstTokenAttentionGatedOther ? "goes there and passes the gate" : "goes there";
  return fmt::format("With {} gate {} {}{}{}. ", name, percent(runs, figure), passes, compared, gate_clause(report));
}

/// Returns the name with its article: "a headwise" or "an elementwise".
std::string with_article(const std::string& name) {
  const bool vowel = !name.empty() && std::string("aeiou").find(name.front()) != std::string::npos;
  return (vowel ? "an " : "a ") + name;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    out += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  }
  return out;
}

std::string loss_sentence(const FigureRow& baseline, const std::vector<NamedFigures>& gated) {
  std::vector<std::string> parts;
  parts.reserve(gated.size());
  for (const NamedFigures& model : gated) {
    const double less = baseline.at(metrics::kLossNats) - model.figures.at(metrics::kLossNats);
    const std::string by = std::abs(less) < kLossNoise
                               ? fmt::format("no different ({:+.3f} nats a byte)", -less)
                               : fmt::format("{:.3f} nats a byte {}", std::abs(less), less > 0.0 ? "lower" : "higher");
    parts.push_back(fmt::format("with {} gate {}", with_article(model.name), by));
  }
  return fmt::format("At equal parameter counts the held-out loss is {} than without one. ", joined(parts));
}

std::string sink_sentence(const FigureRow& baseline, const std::vector<NamedFigures>& gated) {
  double highest = baseline.at(metrics::kFirstTokenAttention);
  double rate = baseline.at(metrics::kSinkRate);
  for (const NamedFigures& model : gated) {
    highest = std::max(highest, model.figures.at(metrics::kFirstTokenAttention));
    rate = std::max(rate, model.figures.at(metrics::kSinkRate));
  }
  const std::string uniform = percent_text(baseline.at(metrics::kFirstTokenAttentionUniform));
  if (rate == 0.0) {
    return fmt::format(
        "No head of any model has a sink on the first token: it gets at most {} of the attention of a model; "
        "uniform attention would give it {}. Sinks are not expected from so short a training. ",
        percent_text(highest), uniform);
  }
  std::vector<std::string> parts{
      fmt::format("{} of them without a gate", percent_text(baseline.at(metrics::kSinkRate)))};
  for (const NamedFigures& model : gated) {
    parts.push_back(
        fmt::format("{} with {} gate", percent_text(model.figures.at(metrics::kSinkRate)), with_article(model.name)));
  }
  return fmt::format("Heads with a sink on the first token: {}. ", joined(parts));
}

std::string activation_sentence(const FigureRow& baseline, const std::vector<NamedFigures>& gated) {
  std::vector<std::string> parts;
  parts.reserve(gated.size());
  for (const NamedFigures& model : gated) {
    const double ratio = model.figures.at(metrics::kMassiveActivation) / baseline.at(metrics::kMassiveActivation);
    const char* word = ratio > kActivationNoise ? "larger" : ratio < 1.0 / kActivationNoise ? "smaller" : "alike";
    parts.push_back(fmt::format("{} with {} gate ({:.2f} of it)", word, with_article(model.name), ratio));
  }
  return fmt::format("Against the model without a gate, the largest activation is {}. ", joined(parts));
}

}  // namespace

SinkEffect sink_effect(const FigureRow& baseline, const FigureRow& gated) {
  if (!has_learnt(baseline) || !has_learnt(gated)) return SinkEffect::not_learnt;
  const double without = baseline.at(metrics::kFirstTokenAttentionOther);
  const double with = gated.at(passing_figure(gated));
  if (without - with < -kSinkNoise) return SinkEffect::opposite;
  if (without < metrics::kSinkThreshold) return SinkEffect::no_sink;
  if (with <= 0.5 * without) return SinkEffect::clear;
  return without - with > kSinkNoise ? SinkEffect::small : SinkEffect::none;
}

std::string backcopy_verdict(const Spread& baseline, const std::vector<NamedSpread>& gated) {
  if (!has_learnt(baseline.mean)) {
    return fmt::format(
        "The model without a gate has not learnt to copy (loss {:.2f} after a trigger): there is nothing "
        "to compare yet. More steps are needed.",
        baseline.mean.at(metrics::kLossTrigger));
  }
  std::string out = baseline_sentence(baseline);
  for (const NamedSpread& model : gated) {
    out += gated_sentence(with_article(model.name), sink_effect(baseline.mean, model.figures.mean), model.figures);
  }
  out.pop_back();
  return out;
}

std::string text_verdict(const FigureRow& baseline, const std::vector<NamedFigures>& gated, std::int64_t tokens) {
  return loss_sentence(baseline, gated) + sink_sentence(baseline, gated) + activation_sentence(baseline, gated) +
         fmt::format("This is one seed and {:.1f} million bytes of training: an impression, not a result.",
                     1e-6 * static_cast<double>(tokens));
}

}  // namespace headgate::demo
