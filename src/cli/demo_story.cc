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

using models::DecoderConfig;
using train::Schedule;
using train::Task;
using train::TrainSettings;

constexpr std::int64_t kLeastBackcopySteps = 800;  // a sink takes its time: docs/notes/2026-11-21-backcopy.md
constexpr std::int64_t kLeastTextSteps = 60;

std::string score(const std::optional<double>& value) { return value ? fmt::format("{:.3f}", *value) : "-"; }

std::string speed(const TrainedModel& trained) { return fmt::format("{:.0f}", trained.tokens_per_second); }

std::vector<std::string> backcopy_row(const TrainedModel& trained) {
  const models::BackcopyReport& r = trained.evaluation.backcopy.value();
  return {trained.model.name,
          fmt::format("{:.3f}", r.bos_attention_trigger),
          fmt::format("{:.3f}", r.bos_attention_other),
          score(r.gate_trigger),
          score(r.gate_other),
          fmt::format("{:.4f}", r.loss_trigger),
          fmt::format("{:.4f}", r.loss_other),
          fmt::format("{:.3f}", r.bos_value_norm_ratio),
          speed(trained)};
}

std::string backcopy_result(const std::vector<TrainedModel>& trained, std::int64_t /*tokens*/) {
  std::vector<std::vector<std::string>> lines = {
      {"", "to BOS,", "to BOS,", "gate,", "gate,", "loss,", "loss,", "norm of", "tokens"},
      {"", "trigger", "elsewhere", "trigger", "elsewhere", "trigger", "elsewhere", "BOS value", "a second"}};
  std::vector<NamedBackcopy> gated;
  for (const TrainedModel& model : trained) {
    lines.push_back(backcopy_row(model));
    gated.push_back({model.model.name, model.evaluation.backcopy.value()});
  }
  const models::BackcopyReport baseline = gated.front().report;
  gated.erase(gated.begin());
  return text_table(lines) + '\n' + paragraph(backcopy_verdict(baseline, gated));
}

std::vector<std::string> text_row(const TrainedModel& trained) {
  const models::EvaluationReport& r = trained.evaluation.report;
  return {trained.model.name,
          fmt::format("{:.4f}", r.overall.loss.nats),
          fmt::format("{:.3f}", r.overall.loss.bits_per_token),
          fmt::format("{:.4f}", r.overall.attention.first_token_attention),
          fmt::format("{:.4f}", r.overall.attention.first_token_attention_uniform),
          fmt::format("{:.2f}", r.overall.attention.sink_rate),
          fmt::format("{:.2f}", r.overall.attention.massive_activation),
          score(r.overall.attention.gate_mean),
          score(r.overall.attention.gate_below_tenth),
          score(r.overall.attention.gate_below_hundredth),
          speed(trained)};
}

std::string text_result(const std::vector<TrainedModel>& trained, std::int64_t tokens) {
  std::vector<std::vector<std::string>> lines = {
      {"", "nats", "bits", "to first", "uniform", "sink", "largest", "gate", "gate", "gate", "tokens"},
      {"", "a byte", "", "token", "look", "rate", "|h|", "mean", "<0.1", "<0.01", "a second"}};
  std::vector<NamedEvaluation> gated;
  for (const TrainedModel& model : trained) {
    lines.push_back(text_row(model));
    gated.push_back({model.model.name, model.evaluation.report});
  }
  const models::EvaluationReport baseline = gated.front().report;
  gated.erase(gated.begin());
  return text_table(lines) + '\n' + paragraph(text_verdict(baseline, gated, tokens));
}

/// The same sizes without a gate, headwise and elementwise.
std::vector<StoryModel> three_models(train::ModelChoices sizes, Task task) {
  std::vector<StoryModel> out;
  out.reserve(3);
  for (const char* gate : {"none", "headwise", "elementwise"}) {
    sizes.gate = gate;
    const bool plain = sizes.gate == "none";
    out.push_back({plain ? "no gate" : gate, train::make_config(sizes, task)});
  }
  return out;
}

std::unique_ptr<train::SequenceSource> open_source(const Story& story) {
  return train::open_data(train::data_of(train::make_settings(story.run, story.models.front().config.seq_len), ""));
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

train::ModelChoices demo_backcopy_sizes() {
  train::ModelChoices sizes;
  sizes.keys.of<&DecoderConfig::embeddings>() = models::Embeddings::separate;
  sizes.keys.of<&DecoderConfig::qk_norm>() = models::QkNorm::none;
  sizes.keys.of<&DecoderConfig::seq_len>() = 64;
  return sizes;
}

void choose_demo_backcopy_run(train::RunChoices& run) {
  run.of<&TrainSettings::batch>() = 16;
  run.of<&Schedule::steps>() = 1000;
}

train::ModelChoices demo_text_sizes() {
  train::ModelChoices sizes;
  sizes.keys.of<&DecoderConfig::layers>() = 4;
  sizes.keys.of<&DecoderConfig::dim>() = 128;
  sizes.keys.of<&DecoderConfig::heads>() = 4;
  return sizes;
}

void choose_demo_text_run(train::RunChoices& run) { run.of<&Schedule::steps>() = 240; }

Story backcopy_story(train::RunChoices run, const train::ModelChoices& sizes) {
  Story story;
  story.run = std::move(run);
  story.run.of<&TrainSettings::task>() = Task::bigram_backcopy;
  story.name = word_of(Task::bigram_backcopy);
  story.least_steps = kLeastBackcopySteps;
  story.models = three_models(sizes, Task::bigram_backcopy);
  story.source = open_source(story);
  story.result = backcopy_result;
  story.introduction = fmt::format(
      "Sequences go by the text's bigrams, but after t, e and space, the triggers, comes a copy of the token before. "
      "After a trigger a head has to look back by one; elsewhere it has nothing to do, and its attention has to go "
      "somewhere: to BOS, the first token? {}; parameters: {}.",
      sizes_of(story.models.front().config), parameter_counts(story.models));
  return story;
}

Story text_story(train::RunChoices run, const train::ModelChoices& sizes) {
  Story story;
  story.run = std::move(run);
  story.run.of<&TrainSettings::task>() = Task::text;
  story.name = word_of(Task::text);
  story.least_steps = kLeastTextSteps;
  train::ModelChoices matched = sizes;
  matched.match_params = true;
  story.models = three_models(matched, Task::text);
  story.source = open_source(story);
  story.result = text_result;
  story.introduction = fmt::format(
      "The text itself, byte by byte, the tail held out. {}; parameters: {}, the widths of the MLP, {}, making up for "
      "what the gates cost. Same seed, same data in the same order.",
      sizes_of(story.models.front().config), parameter_counts(story.models), ffn_widths(story.models));
  return story;
}

train::TrainSettings story_settings(const Story& story, std::int64_t steps) {
  train::RunChoices run = story.run;
  run.of<&Schedule::steps>() = steps;
  return train::make_settings(run, story.models.front().config.seq_len);
}

std::int64_t wanted_steps(const Story& story) {
  return train::make_settings(story.run, story.models.front().config.seq_len).schedule.steps;
}

}  // namespace headgate::cli
