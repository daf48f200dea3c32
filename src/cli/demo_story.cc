// SPDX-License-Identifier: Apache-2.0
#include "cli/demo_story.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "cli/demo_table.hpp"
#include "cli/demo_verdict.hpp"

namespace headgate::cli {

namespace {

using train::Task;

constexpr std::int64_t kLeastBackcopySteps = 800;  // a sink takes its time: docs/notes/2026-11-21-backcopy.md
constexpr std::int64_t kLeastTextSteps = 60;

/// Metrics of the whole model that the demo's tables have columns for, of those that tell triggers apart or of the
/// others.
metrics::MetricList shown_metrics(bool of_triggers) {
  metrics::MetricList out = metrics::all_metrics();
  std::erase_if(out, [of_triggers](const metrics::Metric* metric) {
    const bool shown = std::any_of(metric->figures.begin(), metric->figures.end(),
                                   [](const metrics::Figure& figure) { return !figure.demo.empty(); });
    const bool applies =
        metric->scope != metrics::Scope::layers && (metric->scope == metrics::Scope::triggers) == of_triggers;
    return !shown || !applies;
  });
  return out;
}

/// A line for each model: its figures that have a column, and its speed.
std::string figures_table(const std::vector<TrainedModel>& trained, bool of_triggers) {
  std::vector<const metrics::Figure*> columns = metrics::figures_of(shown_metrics(of_triggers), of_triggers);
  std::erase_if(columns, [](const metrics::Figure* figure) { return figure->demo.empty(); });
  std::vector<std::vector<std::string>> lines(2, {""});
  for (const metrics::Figure* figure : columns) {
    lines[0].emplace_back(figure->demo.upper);
    lines[1].emplace_back(figure->demo.lower);
  }
  lines[0].emplace_back("tokens");
  lines[1].emplace_back("a second");
  for (const TrainedModel& model : trained) {
    const metrics::Report& report = model.evaluation.report;
    const metrics::FigureRow& row = of_triggers ? report.backcopy.value() : report.overall;
    std::vector<std::string> cells{model.model.name};
    for (const metrics::Figure* figure : columns) {
      const std::optional<double> value = row.find(*figure);
      cells.push_back(value ? fmt::format("{:.{}f}", *value, figure->demo.decimals) : "-");
    }
    cells.push_back(fmt::format("{:.0f}", model.tokens_per_second));
    lines.push_back(std::move(cells));
  }
  return text_table(lines);
}

std::string backcopy_result(const std::vector<TrainedModel>& trained, std::int64_t /*tokens*/) {
  std::vector<NamedFigures> gated;
  gated.reserve(trained.size());
  for (const TrainedModel& model : trained) {
    gated.push_back({model.model.name, model.evaluation.report.backcopy.value()});
  }
  const metrics::FigureRow baseline = gated.front().figures;
  gated.erase(gated.begin());
  return figures_table(trained, /*of_triggers=*/true) + '\n' + paragraph(backcopy_verdict(baseline, gated));
}

std::string text_result(const std::vector<TrainedModel>& trained, std::int64_t tokens) {
  std::vector<NamedFigures> gated;
  gated.reserve(trained.size());
  for (const TrainedModel& model : trained) gated.push_back({model.model.name, model.evaluation.report.overall});
  const metrics::FigureRow baseline = gated.front().figures;
  gated.erase(gated.begin());
  return figures_table(trained, /*of_triggers=*/false) + '\n' + paragraph(text_verdict(baseline, gated, tokens));
}

/// The same sizes without a gate, headwise and elementwise.
std::vector<StoryModel> three_models(ModelOptions sizes, Task task) {
  std::vector<StoryModel> out;
  out.reserve(3);
  for (const char* gate : {"none", "headwise", "elementwise"}) {
    sizes.gate = gate;
    const bool plain = sizes.gate == "none";
    out.push_back({plain ? "no gate" : gate, make_config(sizes, task)});
  }
  return out;
}

std::unique_ptr<train::SequenceSource> open_source(const Story& story) {
  return train::open_data(train::data_of(make_settings(story.run, story.models.front().config.seq_len), ""));
}

/// "819328 (no gate), 819840 (headwise), 818304 (elementwise)".
std::string parameter_counts(const std::vector<StoryModel>& models) {
  std::string out;
  for (const StoryModel& model : models) {
    out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", models::parameter_count(model.config), model.name);
  }
  return out;
}

std::string ffn_widths(const std::vector<StoryModel>& models) {
  std::string out;
  for (const StoryModel& model : models) out += fmt::format("{}{}", out.empty() ? "" : ", ", model.config.ffn);
  return out;
}

std::string sizes_of(const models::DecoderConfig& c) {
  return fmt::format("{} layer{}, width {}, {} head{} of {}, sequences of {}", c.layers, c.layers == 1 ? "" : "s",
                     c.dim, c.heads, c.heads == 1 ? "" : "s", c.head_dim, c.seq_len);
}

}  // namespace

ModelOptions demo_backcopy_sizes() {
  ModelOptions sizes;
  sizes.embeddings = "separate";
  sizes.qk_norm = "off";
  sizes.seq_len = 64;
  return sizes;
}

void choose_demo_backcopy_run(RunOptions& run) {
  run.batch = 16;
  run.steps = 1000;
}

ModelOptions demo_text_sizes() {
  ModelOptions sizes;
  sizes.layers = 4;
  sizes.dim = 128;
  sizes.heads = 4;
  return sizes;
}

void choose_demo_text_run(RunOptions& run) { run.steps = 240; }

Story backcopy_story(RunOptions run, const ModelOptions& sizes) {
  Story story;
  story.run = std::move(run);
  story.run.task = train::task_name(Task::bigram_backcopy);
  story.name = story.run.task;
  story.least_steps = kLeastBackcopySteps;
  story.models = three_models(sizes, Task::bigram_backcopy);
  story.source = open_source(story);
  story.metrics = shown_metrics(/*of_triggers=*/true);
  story.result = backcopy_result;
  story.introduction = fmt::format(
      "Sequences go by the text's bigrams, but after t, e and space, the triggers, comes a copy of the token before. "
      "After a trigger a head has to look back by one; elsewhere it has nothing to do, and its attention has to go "
      "somewhere: to BOS, the first token? {}; parameters: {}.",
      sizes_of(story.models.front().config), parameter_counts(story.models));
  return story;
}

Story text_story(RunOptions run, const ModelOptions& sizes) {
  Story story;
  story.run = std::move(run);
  story.run.task = train::task_name(Task::text);
  story.name = story.run.task;
  story.least_steps = kLeastTextSteps;
  ModelOptions matched = sizes;
  matched.match_params = true;
  story.models = three_models(matched, Task::text);
  story.source = open_source(story);
  story.metrics = shown_metrics(/*of_triggers=*/false);
  story.result = text_result;
  story.introduction = fmt::format(
      "The text itself, byte by byte, the tail held out. {}; parameters: {}, the widths of the MLP, {}, making up for "
      "what the gates cost. Same seed, same data in the same order.",
      sizes_of(story.models.front().config), parameter_counts(story.models), ffn_widths(story.models));
  return story;
}

train::TrainSettings story_settings(const Story& story, std::int64_t steps) {
  RunOptions run = story.run;
  run.steps = steps;
  return make_settings(run, story.models.front().config.seq_len);
}

std::int64_t wanted_steps(const Story& story) {
  return make_settings(story.run, story.models.front().config.seq_len).schedule.steps;
}

}  // namespace headgate::cli
