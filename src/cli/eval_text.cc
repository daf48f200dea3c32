// SPDX-License-Identifier: Apache-2.0
#include "cli/eval_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "layers/gate_variant.hpp"

namespace headgate::cli {

namespace {

/// A cell, or "-" where there is no figure.
std::string cell(std::optional<double> value, int width, int decimals) {
  return value ? fmt::format("{:>{}.{}f}", *value, width, decimals) : fmt::format("{:>{}}", "-", width);
}

std::optional<double> if_any(bool any, double value) { return any ? std::optional(value) : std::nullopt; }

std::string figures_head() {
  return fmt::format("{:>9}{:>10}{:>9}{:>8}{:>10}{:>8}{:>8}{:>8}\n", "loss", "to first", "uniform", "sinks", "max |h|",
                     "gate", "<0.1", "<0.01");
}

std::string figures_cells(const models::Figures& figures, bool has_attention) {
  const models::AttentionStatistics& s = figures.attention;
  return cell(figures.loss.nats, 9, 4) + cell(if_any(has_attention, s.first_token_attention), 10, 4) +
         cell(if_any(has_attention, s.first_token_attention_uniform), 9, 4) +
         cell(if_any(has_attention, s.sink_rate), 8, 3) + cell(s.massive_activation, 10, 2) + cell(s.gate_mean, 8, 4) +
         cell(s.gate_below_tenth, 8, 4) + cell(s.gate_below_hundredth, 8, 4) + '\n';
}

std::string backcopy_text(const models::BackcopyReport& r, bool has_attention) {
  const auto row = [&](const char* name, double attention, std::optional<double> gate, std::optional<double> loss) {
    return fmt::format("{:>16}{}{}{}\n", name, cell(if_any(has_attention, attention), 8, 4), cell(gate, 8, 4),
                       cell(loss, 8, 4));
  };
  return fmt::format("\n{:>16}{:>8}{:>8}{:>8}\n", "", "to BOS", "gate", "loss") +
         row("trigger", r.bos_attention_trigger, r.gate_trigger, if_any(has_attention, r.loss_trigger)) +
         row("other position", r.bos_attention_other, r.gate_other, r.loss_other) +
         fmt::format("norm of the BOS value over the others': {}\n",
                     cell(if_any(has_attention, r.bos_value_norm_ratio), 0, 4));
}

std::string backcopy_rows(const std::vector<EvaluatedModel>& models, std::size_t width) {
  std::string out =
      fmt::format("\n{:{}}  attention to BOS      gate              loss              BOS value\n", "", width);
  out += fmt::format("{:{}}  trigger   other   trigger   other   trigger   other      norm\n", "", width);
  for (const EvaluatedModel& model : models) {
    if (!model.evaluation.backcopy) continue;
    const models::BackcopyReport& r = *model.evaluation.backcopy;
    const bool any = model.evaluation.has_attention();
    out += fmt::format("{:{}}", model.name, width) + cell(if_any(any, r.bos_attention_trigger), 9, 4) +
           cell(if_any(any, r.bos_attention_other), 8, 4) + cell(r.gate_trigger, 10, 4) + cell(r.gate_other, 8, 4) +
           cell(if_any(any, r.loss_trigger), 10, 4) + cell(r.loss_other, 8, 4) +
           cell(if_any(any, r.bos_value_norm_ratio), 10, 4) + '\n';
  }
  return out;
}

}  // namespace

std::string layers_text(const EvaluatedModel& model) {
  const models::EvaluationReport& report = model.evaluation.report;
  const models::LossFigures& loss = report.overall.loss;
  const bool has_attention = model.evaluation.has_attention();
  std::string out = fmt::format(
      "{} parameters, gate {}; {} tokens\nloss {:.4f} nats, {:.4f} bits per byte, perplexity {:.4f}\n\n{:>6}{}",
      models::parameter_count(model.config), layers::gate_name(model.config.gate), model.evaluation.tokens, loss.nats,
      loss.bits_per_token, loss.perplexity, "layer", figures_head());
  for (std::size_t i = 0; i < report.layers.size(); ++i) {
    out += fmt::format("{:>6}{}", i, figures_cells(report.layers[i], has_attention));
  }
  out += fmt::format("{:>6}{}", "all", figures_cells(report.overall, has_attention));
  if (model.evaluation.backcopy) out += backcopy_text(*model.evaluation.backcopy, has_attention);
  return out;
}

std::string comparison_text(const std::vector<EvaluatedModel>& models) {
  std::size_t width = std::string("model").size();
  std::size_t gate_width = std::string("gate").size();
  for (const EvaluatedModel& model : models) {
    width = std::max(width, model.name.size());
    gate_width = std::max(gate_width, layers::gate_name(model.config.gate).size());
  }
  std::string out = fmt::format("the same {} tokens for every model\n\n", models.front().evaluation.tokens);
  for (const EvaluatedModel& model : models) {
    out += fmt::format("{:{}}  {:{}}  {} parameters\n", model.name, width, layers::gate_name(model.config.gate),
                       gate_width, models::parameter_count(model.config));
  }
  out += fmt::format("\n{:{}}{}", "", width, figures_head());
  for (const EvaluatedModel& model : models) {
    out += fmt::format("{:{}}", model.name, width) +
           figures_cells(model.evaluation.report.overall, model.evaluation.has_attention());
  }
  if (models.front().evaluation.backcopy) out += backcopy_rows(models, width);
  return out;
}

}  // namespace headgate::cli
