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
#include <sstream>
#include <utility>

#include "models/evaluate/loss.hpp"
#include "models/evaluate/registry.hpp"
#include "models/layers/gate_variant.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/console/console.hpp"
#include "tool/console/terminal_text.hpp"

namespace headgate::cli {

namespace {

using metrics::Figure;
using metrics::FigureRow;
using metrics::Metric;
using Figures = std::vector<const Figure*>;

std::string shown_name(const EvaluatedModel& model) { return console::terminal_text(model.name); }

/// Formats a cell, "-" if there is no figure. A number that is too wide stays apart from the cell before it.
std::string cell(std::optional<double> value, int width, int decimals) {
  const bool is_nan = value && std::isnan(*value);  // whose sign says nothing
  const std::string text = !value ? "-" : is_nan ? "nan" : fmt::format("{:.{}f}", *value, decimals);
  const bool touches = width > 0 && std::ssize(text) >= width;
  return touches ? ' ' + text : fmt::format("{:>{}}", text, width);
}

/// Returns the figures of these metrics that have a column in the tables of layers and models.
Figures columns_of(const std::vector<const Metric*>& all) {
  Figures out = metrics::figures_of(all, /*of_triggers=*/false);
  std::erase_if(out, [](const Figure* figure) { return figure->column.width == 0; });
  return out;
}

/// Returns those that some of the models has as a whole, in the order of the registry.
Figures columns_of_models(const std::vector<EvaluatedModel>& models) {
  std::vector<const Metric*> all = metrics::all_metrics();
  std::erase_if(all, [&](const Metric* metric) {
    const auto has = [metric](const EvaluatedModel& model) {
      const auto& own = model.evaluation.report.metrics;
      return std::find(own.begin(), own.end(), metric) != own.end();
    };
    return metric->scope == metrics::Scope::layers || std::none_of(models.begin(), models.end(), has);
  });
  return columns_of(all);
}

/// Returns those with a value for each layer.
Figures columns_of_layers(const metrics::Report& report) {
  std::vector<const Metric*> of_layers = report.metrics;
  std::erase_if(of_layers, [](const Metric* metric) {
    return metric->scope != metrics::Scope::layers && metric->scope != metrics::Scope::layers_and_mean;
  });
  return columns_of(of_layers);
}

/// A column of the tables of layers and models, as wide as its cells need.
struct TableColumn {
  const Figure* figure;
  int width;
};
using TableColumns = std::vector<TableColumn>;

/// Returns the columns of these figures, wide enough to part the cells of all rows.
TableColumns fitted(const Figures& figures, const std::vector<const FigureRow*>& rows) {
  TableColumns out;
  for (const Figure* figure : figures) {
    int width = figure->column.width;
    for (const FigureRow* row : rows) {
      const std::string text = cell(row->find(*figure), 0, figure->column.decimals);
      width = std::max(width, static_cast<int>(text.size()) + 1);
    }
    out.push_back({figure, width});
  }
  return out;
}

std::string header_line(const TableColumns& columns) {
  std::string out;
  for (const auto& [figure, width] : columns) out += fmt::format("{:>{}}", figure->column.head, width);
  return out + '\n';
}

std::string cells_line(const TableColumns& columns, const FigureRow& row) {
  std::string out;
  for (const auto& [figure, width] : columns) out += cell(row.find(*figure), width, figure->column.decimals);
  return out + '\n';
}

std::vector<const Metric*> trigger_metrics(const metrics::Report& report) {
  std::vector<const Metric*> out = report.metrics;
  std::erase_if(out, [](const Metric* metric) { return metric->scope != metrics::Scope::triggers; });
  return out;
}

/// Formats a table with a column for each metric that separates triggers from other positions, and a line for each
/// other one.
std::string backcopy_text(const std::vector<const Metric*>& all, const FigureRow& row) {
  constexpr int kWidth = 8;
  std::string header, trigger, other, lines;
  for (const Metric* metric : all) {
    const Figure& first = metric->figures[0];
    if (metric->figures.size() == 1) {
      lines += fmt::format("{}: {}\n", metric->heads.one_model, cell(row.find(first), 0, first.column.decimals));
      continue;
    }
    const Figure& second = metric->figures[1];
    header += fmt::format("{:>{}}", metric->heads.one_model, kWidth);
    trigger += cell(row.find(first), kWidth, first.column.decimals);
    other += cell(row.find(second), kWidth, second.column.decimals);
  }
  if (header.empty()) return '\n' + lines;
  return fmt::format("\n{:>16}{}\n{:>16}{}\n{:>16}{}\n", "", header, "trigger", trigger, "other position", other) +
         lines;
}

/// Formats the same table for several models, one line each.
std::string backcopy_rows(const std::vector<EvaluatedModel>& models, const std::vector<const Metric*>& all,
                          std::size_t name_width) {
  std::string groups, header;
  std::vector<std::string> cells(models.size());
  for (const Metric* metric : all) {
    groups.resize(std::max(groups.size(), header.size() + metric->heads.indent), ' ');
    groups += metric->heads.compared;
    for (const Figure& figure : metric->figures) {
      const int width = figure.column.width - (header.empty() ? 1 : 0);  // names have no trailing space
      header += fmt::format("{:>{}}", figure.column.head, width);
      for (std::size_t i = 0; i < models.size(); ++i) {
        const FigureRow& row = models[i].evaluation.report.backcopy.value();
        cells[i] += cell(row.find(figure), width, figure.column.decimals);
      }
    }
  }
  std::string out = fmt::format("\n{:{}}{}\n{:{}}{}\n", "", name_width, groups, "", name_width, header);
  for (std::size_t i = 0; i < models.size(); ++i) {
    out += fmt::format("{:{}}{}\n", shown_name(models[i]), name_width, cells[i]);
  }
  return out;
}

/// Formats, for each figure that some head has, a line for each layer with a column for each head.
std::string heads_text(const metrics::Report& report) {
  constexpr int kWidth = 8;
  std::string out;
  for (const Figure* figure : metrics::figures_of(metrics::of_heads(report.metrics), /*of_triggers=*/false)) {
    std::string lines;
    bool any = false;
    for (std::size_t layer = 0; layer < report.heads.size(); ++layer) {
      lines += fmt::format("{:>6}", layer);
      for (const FigureRow& row : report.heads[layer]) {
        any = any || row.find(*figure);
        lines += cell(row.find(*figure), kWidth, figure->column.decimals);
      }
      lines += '\n';
    }
    if (!any) continue;
    out += fmt::format("\n{} of each head\n{:>6}", figure->key, "layer");
    std::size_t most = 0;
    for (const std::vector<FigureRow>& layer : report.heads) most = std::max(most, layer.size());
    for (std::size_t head = 0; head < most; ++head) out += fmt::format("{:>{}}", head, kWidth);
    out += '\n' + lines;
  }
  return out;
}

/// Returns a line on the effect of leaving out closed rows; empty if it was not measured.
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

/// Returns "512 tokens (2034 bytes), 1.2345 bits per byte", as far as it is known.
std::string text_read(const EvaluatedModel& model) {
  const train::Evaluation& evaluation = model.evaluation;
  const std::optional<double> bits = evaluation.report.overall.find(metrics::kBitsPerByte);
  return fmt::format("{} tokens{}{}", evaluation.tokens,
                     evaluation.text_bytes ? fmt::format(" ({} bytes)", *evaluation.text_bytes) : "",
                     bits ? fmt::format(", {:.4f} bits per byte", *bits) : "");
}

constexpr std::size_t kHelpColumns = 80;

/// Wraps `text` at kHelpColumns, and indents all lines except the first.
std::string in_lines(const std::string& text) {
  std::string out;
  std::size_t column = 0;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const bool fits = column + 1 + word.size() <= kHelpColumns;
    if (column > 0) out += fits ? " " : "\n  ";
    column = column == 0 ? word.size() : fits ? column + 1 + word.size() : 2 + word.size();
    out += word;
  }
  return out + '\n';
}

/// Returns the keys of the figures, with a note after those that models without a gate lack.
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
  std::string out = fmt::format("{} parameters, gate {}; {} tokens{}\n", models::parameter_count(model.config),
                                layers::gate_name(model.config.gate), model.evaluation.tokens,
                                bytes ? fmt::format(" ({} bytes)", *bytes) : "");
  for (const Metric* metric : report.metrics) {
    if (metric->headline != nullptr) out += metric->headline(report.overall) + '\n';
  }
  if (const Figures figures = columns_of_layers(report); !figures.empty()) {
    std::vector<const FigureRow*> rows{&report.overall};
    for (const FigureRow& layer : report.layers) rows.push_back(&layer);
    const TableColumns columns = fitted(figures, rows);
    out += fmt::format("\n{:>6}{}", "layer", header_line(columns));
    for (std::size_t i = 0; i < report.layers.size(); ++i) {
      out += fmt::format("{:>6}{}", i, cells_line(columns, report.layers[i]));
    }
    out += fmt::format("{:>6}{}", "all", cells_line(columns, report.overall));
  }
  if (heads == train::HeadFigures::included) out += heads_text(report);
  const std::vector<const Metric*> by_trigger = trigger_metrics(report);
  if (!by_trigger.empty()) out += backcopy_text(by_trigger, report.backcopy.value());
  const std::string threshold = threshold_line(model.evaluation);
  if (!threshold.empty()) out += '\n' + threshold;
  return out;
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
  std::string out = same ? fmt::format("the same {} tokens for every model\n\n", models.front().evaluation.tokens)
                         : "the same text for every model as tokens of its own: bits per byte compare, losses a token "
                           "do not\n\n";
  for (const EvaluatedModel& model : models) {
    out +=
        fmt::format("{:{}}  {:{}}  {} parameters{}\n", shown_name(model), width, layers::gate_name(model.config.gate),
                    gate_width, models::parameter_count(model.config), same ? "" : ", " + text_read(model));
  }
  std::vector<const FigureRow*> rows;
  rows.reserve(models.size());
  for (const EvaluatedModel& model : models) rows.push_back(&model.evaluation.report.overall);
  const TableColumns columns = fitted(columns_of_models(models), rows);
  if (columns.empty() && !columns_of_layers(models.front().evaluation.report).empty()) {
    out += "\nfigures of layers are compared with --json, or shown for one model\n";
  }
  if (!columns.empty()) {
    out += fmt::format("\n{:{}}{}", "", width, header_line(columns));
    for (const EvaluatedModel& model : models) {
      out += fmt::format("{:{}}", shown_name(model), width) + cells_line(columns, model.evaluation.report.overall);
    }
  }
  const std::vector<const Metric*> by_trigger = trigger_metrics(models.front().evaluation.report);
  if (!by_trigger.empty()) out += backcopy_rows(models, by_trigger, width);
  std::string thresholds;
  for (const EvaluatedModel& model : models) {
    const std::string line = threshold_line(model.evaluation);
    if (!line.empty()) thresholds += fmt::format("{:{}}  {}", shown_name(model), width, line);
  }
  if (!thresholds.empty()) out += '\n' + thresholds;
  return out;
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
  return in_lines(
      "JSON keys: " + keys_text(metrics::figures_of(all, /*of_triggers=*/false)) +
      "; layers, a list of the same; with --heads, in each layer heads, a list of " +
      keys_text(metrics::figures_of(metrics::of_heads(all), /*of_triggers=*/false)) +
      "; a figure of linear attention only for models that have it; a figure of one kind of layer is null in others; "
      "tokens; text_bytes, those that the targets stand for where tokens are not bytes; on bigram-backcopy, "
      "backcopy: " +
      keys_text(metrics::figures_of(all, /*of_triggers=*/true)) +
      "; and with --gate-threshold, gate_threshold: threshold closed_share, and with and without it loss_nats seconds "
      "attention_seconds tokens_per_second");
}

}  // namespace headgate::cli
