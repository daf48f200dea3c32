// SPDX-License-Identifier: Apache-2.0
#include "tool/demo/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "models/layers/gate_variant.hpp"
#include "models/train/metrics_record.hpp"
#include "models/train/task_defaults.hpp"
#include "tool/console/shell_word.hpp"
#include "tool/console/table.hpp"
#include "tool/demo/verdict.hpp"

namespace headgate::demo {

namespace {

using models::DecoderConfig;
using train::Task;
using train::TrainSettings;

/// Returns the metrics of whole models that the demo's tables show.
/// `of_triggers`: true for the metrics that compare trigger tokens with other tokens, false for all other metrics.
/// After a trigger token, the model must copy a token.
metrics::MetricList shown_metrics(bool of_triggers) {
  metrics::MetricList out = metrics::all_metrics();
  std::erase_if(out, [of_triggers](const metrics::Metric* metric) {
    const bool shown = std::any_of(metric->figures.begin(), metric->figures.end(), [](const metrics::Figure& figure) {
      return figure.demo_decimals != metrics::kNoColumn;
    });
    const bool applies =
        metric->scope != metrics::Scope::layers && (metric->scope == metrics::Scope::triggers) == of_triggers;
    return !shown || !applies;
  });
  return out;
}

/// Returns, for each evaluation figure of the model, the mean, smallest and largest value over the seeds.
Spread figures_of(const TrainedModel& model, bool of_triggers) {
  std::vector<metrics::FigureRow> rows;
  rows.reserve(model.evaluations.size());
  for (const train::Evaluation& evaluation : model.evaluations) {
    rows.push_back(of_triggers ? evaluation.report.backcopy.value() : evaluation.report.overall);
  }
  return spread_of(rows);
}

std::string range_text(const Spread& spread, const metrics::Figure& figure) {
  const std::optional<double> least = spread.least.find(figure), most = spread.most.find(figure);
  if (!least) return "";
  const int decimals = std::min(figure.demo_decimals, 2);
  return fmt::format("{:.{}f}-{:.{}f}", *least, decimals, *most, decimals);
}

/// Returns a table of each model's figures and training speed.
/// With several seeds, the table shows means and, on the line below, ranges.
std::string figures_table(const std::vector<TrainedModel>& trained, bool of_triggers) {
  std::vector<const metrics::Figure*> columns = metrics::figures_of(shown_metrics(of_triggers), of_triggers);
  std::erase_if(columns, [](const metrics::Figure* figure) { return figure->demo_decimals == metrics::kNoColumn; });
  std::vector<std::string> headings{""};
  for (const metrics::Figure* figure : columns) headings.emplace_back(figure->heading());
  headings.emplace_back(train::kTokensPerSecond.heading());
  console::TableLines lines = console::heading_lines(headings);
  for (const TrainedModel& model : trained) {
    const Spread spread = figures_of(model, of_triggers);
    std::vector<std::string> cells{model.model.name};
    std::vector<std::string> ranges{""};
    for (const metrics::Figure* figure : columns) {
      const std::optional<double> value = spread.mean.find(*figure);
      cells.push_back(value ? fmt::format("{:.{}f}", *value, figure->demo_decimals) : "-");
      ranges.push_back(range_text(spread, *figure));
    }
    cells.push_back(fmt::format("{:.0f}", model.tokens_per_second));
    ranges.emplace_back("");
    lines.push_back(std::move(cells));
    if (spread.runs > 1) lines.push_back(std::move(ranges));
  }
  return console::text_table(lines);
}

/// Returns three variants of the model: without a gate, with a headwise gate and with an elementwise gate.
std::vector<ComparedModel> three_models(DecoderConfig model) {
  std::vector<ComparedModel> out;
  out.reserve(3);
  for (const char* gate : {"none", "headwise", "elementwise"}) {
    model.gate = layers::parse_gate(gate);
    models::validate(model);
    out.push_back({has_gate(model.gate) ? gate : "no gate", model});
  }
  return out;
}

/// Builds a comparison of three models on `task`, with one data source per seed.
/// The caller adds the metrics and the introduction.
Comparison comparison_of(Task task, const DecoderConfig& model, TrainSettings settings, std::int64_t seeds) {
  Comparison comparison;
  settings.task = task;
  settings.seq_len = model.seq_len;
  settings.schedule.warmup = train::default_warmup(settings.schedule.steps);
  train::validate(settings);
  comparison.name = word_of(task);
  comparison.models = three_models(model);
  for (std::int64_t n = 0; n < seeds; ++n) {
    TrainSettings of_seed = settings;
    of_seed.seed += static_cast<std::uint64_t>(n);
    comparison.sources.push_back(train::open_data(train::data_of(of_seed, "")));
  }
  comparison.settings = std::move(settings);
  return comparison;
}

/// Returns the parameter counts as "819328 (no gate), 819840 (headwise), 818304 (elementwise)".
std::string parameter_counts(const std::vector<ComparedModel>& models) {
  std::string out;
  for (const ComparedModel& model : models) {
    out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", models::parameter_count(model.config), model.name);
  }
  return out;
}

std::string ffn_widths(const std::vector<ComparedModel>& models) {
  std::string out;
  for (const ComparedModel& model : models) out += fmt::format("{}{}", out.empty() ? "" : ", ", model.config.ffn);
  return out;
}

std::string sizes_of(const DecoderConfig& c) {
  return fmt::format("{} layer{}, width {}, {} head{} of {}, sequences of {}", c.layers, c.layers == 1 ? "" : "s",
                     c.dim, c.heads, c.heads == 1 ? "" : "s", c.head_dim, c.seq_len);
}

}  // namespace

DecoderConfig demo_backcopy_model() {
  DecoderConfig model = train::task_model(Task::bigram_backcopy);
  model.embeddings = models::Embeddings::separate;
  model.qk_norm = models::QkNorm::none;
  model.seq_len = 64;
  return model;
}

TrainSettings demo_backcopy_settings() {
  TrainSettings settings = train::task_settings(Task::bigram_backcopy);
  settings.batch = 16;
  settings.schedule.steps = 1000;
  return settings;
}

DecoderConfig demo_text_model() {
  DecoderConfig model = train::task_model(Task::text);
  model.layers = 8;
  model.dim = 64;
  model.heads = 4;
  model.kv_heads = 4;
  model.head_dim = 16;
  model.ffn = 192;
  return model;
}

TrainSettings demo_text_settings() {
  TrainSettings settings = train::task_settings(Task::text);
  settings.batch = 2;
  settings.schedule.peak = 4e-3;
  settings.schedule.steps = 800;
  return settings;
}

std::string commands_to_try(const std::string& tool, const std::string& data) {
  return fmt::format(
      "\n\nWhat to try next (Ctrl-C saves and prints how to resume; {0} VERB --help explains a verb)\n\n"
      "     {0} train --task bigram-backcopy {2} --data {1} --out backcopy-plain\n"
      "     {0} train --task bigram-backcopy {2} --data {1} --out backcopy-gated --gate headwise\n"
      "     {0} eval backcopy-plain backcopy-gated --text {1}\n\n"
      "     {0} train --data {1} --out text-plain\n"
      "     {0} train --data {1} --out text-gated --gate elementwise --match-params\n"
      "     {0} eval text-plain text-gated --text {1} --held-out --tokens 200000\n",
      console::shell_word(tool), console::shell_word(data),
      "--embeddings separate --qk-norm off --seq-len 64 --batch 16");  // selects the demo's model and batch size
}

Comparison compare_on_backcopy(const DecoderConfig& model, TrainSettings settings, std::int64_t seeds) {
  Comparison comparison = comparison_of(Task::bigram_backcopy, model, std::move(settings), seeds);
  comparison.metrics = shown_metrics(/*of_triggers=*/true);
  comparison.introduction = fmt::format(
      "Sequences follow the text's bigrams, but after the triggers t, e and space the token before the trigger is "
      "repeated. After a trigger a head has to attend to the token before; elsewhere no token helps it. How much of "
      "that attention goes to BOS, the first token, and how much of it passes the gate? {}; parameters: {}.",
      sizes_of(comparison.models.front().config), parameter_counts(comparison.models));
  return comparison;
}

Comparison compare_on_text(const DecoderConfig& model, TrainSettings settings) {
  Comparison comparison = comparison_of(Task::text, model, std::move(settings), 1);
  comparison.metrics = shown_metrics(/*of_triggers=*/false);
  for (ComparedModel& compared : comparison.models) compared.config = models::match_params(compared.config);
  comparison.introduction = fmt::format(
      "The text itself, byte by byte, with the tail held out. {}; parameters: {}; widths of the MLP: {}, chosen for "
      "equal parameter counts. All models have the same seed and the same data in the same order.",
      sizes_of(comparison.models.front().config), parameter_counts(comparison.models), ffn_widths(comparison.models));
  return comparison;
}

std::string result_text(const Comparison& comparison, const std::vector<TrainedModel>& trained) {
  const bool of_triggers = comparison.sources.front()->has_triggers();
  std::vector<NamedSpread> models;
  models.reserve(trained.size());
  for (const TrainedModel& model : trained) models.push_back({model.model.name, figures_of(model, of_triggers)});
  const train::TrainSettings& settings = comparison.settings;
  const auto tokens = static_cast<double>(settings.schedule.steps * settings.tokens_per_step());
  const std::string verdict = of_triggers ? backcopy_verdict(models) : text_verdict(models, tokens);
  return figures_table(trained, of_triggers) + '\n' + console::paragraph(verdict);
}

}  // namespace headgate::demo
