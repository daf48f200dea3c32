// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/eval_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "models/evaluate/loss.hpp"
#include "models/evaluate/registry.hpp"
#include "models/layers/gate_variant.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/console/console.hpp"
#include "tool/console/table.hpp"
#include "tool/console/terminal_text.hpp"

namespace headgate::cli {

namespace {

using metrics::Figure;
using metrics::FigureRow;
using metrics::Metric;
using Figures = std::vector<const Figure*>;

std::string shown_name(const EvaluatedModel& model) { return console::terminal_text(model.name); }

// Minimum number of decimals in the tables with one column per head. Metric values with more decimals keep them.
constexpr int kLeastDecimals = 3;

/// Formats a table cell: the value, or "-" if there is no value.
std::string cell(std::optional<double> value, int decimals) {
  const bool is_nan = value && std::isnan(*value);  // NaN is printed as "nan": its sign means nothing
  return !value ? "-" : is_nan ? "nan" : fmt::format("{:.{}f}", *value, decimals);
}

/// A row of a table: a label, and the metric values of the row.
struct NamedRow {
  std::string name;
  const FigureRow* figures;
};

/// Returns the figures (named metric values) to show as columns of a table.
/// Leaves out figures that tables never show, and figures without a value in any row.
Figures columns_of(Figures figures, const std::vector<NamedRow>& rows) {
  std::erase_if(figures, [&rows](const Figure* figure) {
    const auto has = [figure](const NamedRow& row) { return row.figures->find(*figure).has_value(); };
    return figure->decimals == metrics::kNoColumn || std::none_of(rows.begin(), rows.end(), has);
  });
  return figures;
}

/// Formats a table with one line for each row and one column for each figure (named metric value) to show.
/// Returns an empty string if there is no figure to show.
std::string figures_table(const std::string& heading, const Figures& figures, const std::vector<NamedRow>& rows) {
  const Figures columns = columns_of(figures, rows);
  if (columns.empty()) return "";
  std::vector<std::string> headings{heading};
  for (const Figure* figure : columns) headings.emplace_back(figure->heading());
  console::TableLines lines = console::heading_lines(headings);
  for (const NamedRow& row : rows) {
    std::vector<std::string>& line = lines.emplace_back();
    line.push_back(row.name);
    for (const Figure* figure : columns) line.push_back(cell(row.figures->find(*figure), figure->decimals));
  }
  return '\n' + console::text_table(lines);
}

/// Returns the metric values for whole models, in the order of all_metrics(). Leaves out values that no model has.
Figures figures_of_models(const std::vector<EvaluatedModel>& models) {
  std::vector<const Metric*> all = metrics::all_metrics();
  std::erase_if(all, [&](const Metric* metric) {
    const auto has = [metric](const EvaluatedModel& model) {
      const auto& own = model.evaluation.report.metrics;
      return std::find(own.begin(), own.end(), metric) != own.end();
    };
    return metric->scope == metrics::Scope::layers || std::none_of(models.begin(), models.end(), has);
  });
  return metrics::figures_of(all, /*of_triggers=*/false);
}

/// Returns the metric values that exist for each layer.
Figures figures_of_layers(const metrics::Report& report) {
  std::vector<const Metric*> of_layers = report.metrics;
  std::erase_if(of_layers, [](const Metric* metric) {
    return metric->scope != metrics::Scope::layers && metric->scope != metrics::Scope::layers_and_mean;
  });
  return metrics::figures_of(of_layers, /*of_triggers=*/false);
}

/// Formats a table that compares trigger tokens with other tokens. After a trigger token, the model must copy a token.
/// Returns an empty string for tasks without trigger tokens. Only the task bigram-backcopy has them.
std::string triggers_table(const std::vector<EvaluatedModel>& models) {
  std::vector<NamedRow> rows;
  for (const EvaluatedModel& model : models) {
    if (const auto& row = model.evaluation.report.backcopy) rows.push_back({shown_name(model), &*row});
  }
  const metrics::MetricList& own = models.front().evaluation.report.metrics;
  return figures_table("model", metrics::figures_of(own, /*of_triggers=*/true), rows);
}

/// Describes the amount of evaluated data, for instance "65536 tokens in sequences of 512".
std::string tokens_text(const train::Evaluation& evaluation) {
  return fmt::format("{} tokens in sequences of {}", evaluation.tokens, evaluation.seq_len);
}

/// Returns a note that one-token sequences have no attention metrics. Returns an empty string for longer sequences.
std::string one_token_sentence(const train::Evaluation& evaluation) {
  if (evaluation.seq_len > 1) return "";
  return "\nA sequence of one token has no figures of attention: its query sees itself alone.\n";
}

/// Formats one table for each metric value that at least one head has. A table has a line per layer and a column per
/// head.
std::string heads_text(const metrics::Report& report) {
  constexpr int kWidth = 7;
  std::string out;
  for (const Figure* figure : metrics::figures_of(metrics::of_heads(report.metrics), /*of_triggers=*/false)) {
    std::string lines;
    bool any = false;
    for (std::size_t layer = 0; layer < report.heads.size(); ++layer) {
      lines += fmt::format("{:>6}", layer);
      for (const FigureRow& row : report.heads[layer]) {
        any = any || row.find(*figure);
        lines += fmt::format(" {:>{}}", cell(row.find(*figure), std::max(figure->decimals, kLeastDecimals)), kWidth);
      }
      lines += '\n';
    }
    if (!any) continue;
    out += fmt::format("\n{} of each head\n{:>6}", figure->key, "layer");
    std::size_t most = 0;
    for (const std::vector<FigureRow>& layer : report.heads) most = std::max(most, layer.size());
    for (std::size_t head = 0; head < most; ++head) out += fmt::format(" {:>{}}", head, kWidth);
    out += '\n' + lines;
  }
  return out;
}

/// Returns a line on the speed and the loss with --gate-threshold, which skips attention rows whose gates are closed.
/// Returns an empty string if --gate-threshold was not given.
std::string threshold_line(const train::Evaluation& evaluation) {
  if (!evaluation.threshold) return "";
  const train::ThresholdComparison& c = *evaluation.threshold;
  const auto tokens = static_cast<double>(evaluation.tokens);
  return fmt::format(
      "gate threshold {}: {:.1f}% of rows closed; loss {:.4f} (all rows {:.4f}); attention {:.3g} s ({:.3g} s); "
      "{:.0f} tokens/s ({:.0f})\n",
      c.threshold, 100.0 * c.closed_share, c.with.loss_nats, c.without.loss_nats, c.with.attention_seconds,
      c.without.attention_seconds, tokens / c.with.seconds, tokens / c.without.seconds);
}

/// Returns lines that compare the model with variants of itself and with a reference model.
/// Each variant is the same model with --gate-threshold, --cache-dtype or --activations. Each line begins with `name`.
std::string compared_lines(const train::Evaluation& evaluation, const std::string& name = "") {
  std::string out;
  if (const std::string line = threshold_line(evaluation); !line.empty()) out += name + line;
  for (const train::Comparison& comparison : evaluation.comparisons) {
    out += name + train::comparison_line(comparison, console::terminal_text(comparison.name)) + '\n';
  }
  return out;
}

/// Describes the evaluated text: "1024 tokens in sequences of 512 (2034 bytes), 1.2345 bits per byte".
/// Omits values that are unknown.
std::string text_read(const EvaluatedModel& model) {
  const train::Evaluation& evaluation = model.evaluation;
  const std::optional<double> bits = evaluation.report.overall.find(metrics::kBitsPerByte);
  return fmt::format("{}{}{}", tokens_text(evaluation),
                     evaluation.text_bytes ? fmt::format(" ({} bytes)", *evaluation.text_bytes) : "",
                     bits ? fmt::format(", {:.4f} bits per byte", *bits) : "");
}

/// Returns the JSON keys of metric values, separated by spaces.
/// Adds "(null without a gate)" once after consecutive keys that are null for models without a gate.
std::string keys_text(const std::vector<const metrics::Figure*>& figures) {
  std::string out;
  for (std::size_t i = 0; i < figures.size(); ++i) {
    out += fmt::format("{}{}", i == 0 ? "" : " ", figures[i]->key);
    const bool last_with_gate = i + 1 == figures.size() || !figures[i + 1]->null_without_gate;
    if (figures[i]->null_without_gate && last_with_gate) out += " (null without a gate)";
  }
  return out;
}

}  // namespace

std::string layers_text(const EvaluatedModel& model, train::HeadFigures heads) {
  const metrics::Report& report = model.evaluation.report;
  const std::optional<std::int64_t> bytes = model.evaluation.text_bytes;
  std::string out = fmt::format("{} parameters, gate {}; {}{}\n", models::parameter_count(model.config),
                                layers::gate_name(model.config.gate), tokens_text(model.evaluation),
                                bytes ? fmt::format(" ({} bytes)", *bytes) : "");
  for (const Metric* metric : report.metrics) {
    if (metric->headline != nullptr) out += metric->headline(report.overall) + '\n';
  }
  std::vector<NamedRow> rows;
  for (std::size_t i = 0; i < report.layers.size(); ++i) rows.push_back({fmt::format("{}", i), &report.layers[i]});
  rows.push_back({"all", &report.overall});
  out += figures_table("layer", figures_of_layers(report), rows);
  if (heads == train::HeadFigures::included) out += heads_text(report);
  out += triggers_table({model}) + one_token_sentence(model.evaluation);
  const std::string compared = compared_lines(model.evaluation);
  return compared.empty() ? out : out + '\n' + compared;
}

std::string comparison_text(const std::vector<EvaluatedModel>& models) {
  std::size_t width = std::string("model").size();
  std::size_t gate_width = std::string("gate").size();
  for (const EvaluatedModel& model : models) {
    width = std::max(width, shown_name(model).size());
    gate_width = std::max(gate_width, layers::gate_name(model.config.gate).size());
  }
  const bool same = std::all_of(models.begin(), models.end(),
                                [&](const EvaluatedModel& model) { return model.source == models.front().source; });
  std::string out = same ? fmt::format("the same {} for every model\n\n", tokens_text(models.front().evaluation))
                         : "the same text for every model as tokens of its own: bits per byte compare, losses a token "
                           "do not\n\n";
  for (const EvaluatedModel& model : models) {
    out +=
        fmt::format("{:{}}  {:{}}  {} parameters{}\n", shown_name(model), width, layers::gate_name(model.config.gate),
                    gate_width, models::parameter_count(model.config), same ? "" : ", " + text_read(model));
  }
  std::vector<NamedRow> rows;
  rows.reserve(models.size());
  for (const EvaluatedModel& model : models) rows.push_back({shown_name(model), &model.evaluation.report.overall});
  const std::string figures = figures_table("model", figures_of_models(models), rows);
  if (figures.empty() && !figures_of_layers(models.front().evaluation.report).empty()) {
    out += "\nfigures of layers are compared with --json, or shown for one model\n";
  }
  out += figures + triggers_table(models) + one_token_sentence(models.front().evaluation);
  std::string compared;
  for (const EvaluatedModel& model : models) {
    compared += compared_lines(model.evaluation, fmt::format("{:{}}  ", shown_name(model), width));
  }
  return compared.empty() ? out : out + '\n' + compared;
}

std::string json_text(const std::vector<EvaluatedModel>& models, train::HeadFigures heads) {
  using nlohmann::ordered_json;
  ordered_json out = ordered_json::array();
  for (const EvaluatedModel& model : models) {
    ordered_json figures = train::evaluation_json(model.evaluation, heads);
    if (models.size() == 1) {
      out = std::move(figures);
      break;
    }
    ordered_json object = {{"model", model.name},
                           {"gate", layers::gate_name(model.config.gate)},
                           {"parameters", models::parameter_count(model.config)}};
    object.update(figures);
    out.push_back(std::move(object));
  }
  return json_text(out);
}

bool check_finite(const std::string& verb, const std::string& model, const train::Evaluation& evaluation) {
  const std::string where = train::first_not_finite(evaluation.report);
  if (where.empty()) return true;
  console::say(stderr, fmt::format("headgate {}: {}: the model gives numbers that are not finite, first {}\n", verb,
                                   console::terminal_text(model), where));
  return false;
}

std::string json_keys_help() {
  const metrics::MetricList all = metrics::all_metrics();
  constexpr std::size_t kColumns = 80, kIndent = 2;
  const std::string text =
      "JSON keys: " + keys_text(metrics::figures_of(all, /*of_triggers=*/false)) +
      "; layers, a list of the same; with --heads, in each layer heads, a list of " +
      keys_text(metrics::figures_of(metrics::of_heads(all), /*of_triggers=*/false)) +
      "; a figure of linear attention only for models that have it; a figure of one kind of layer is null in others; "
      "tokens; seq_len, the tokens of a sequence; text_bytes, those that the targets stand for where tokens are not "
      "bytes; on bigram-backcopy, "
      "backcopy: " +
      keys_text(metrics::figures_of(all, /*of_triggers=*/true)) +
      "; and with --gate-threshold, gate_threshold: threshold closed_share, and with and without it loss_nats seconds "
      "attention_seconds tokens_per_second; and with --cache-dtype, cache: dtype first loss_nats unrounded_loss_nats "
      "kl_nats same_top_1; and with --activations, activations: an object for each word with the same keys but dtype "
      "and first; and with "
      "--against, against: model loss_nats reference_loss_nats kl_nats same_top_1";
  return console::wrapped_words(text, kColumns, 0, kIndent) + '\n';
}

}  // namespace headgate::cli
