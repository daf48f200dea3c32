// SPDX-License-Identifier: Apache-2.0
#include "train/evaluation_choices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.hpp"
#include "train/corpus.hpp"
#include "train/run_directory.hpp"

namespace headgate::train {
namespace {

/// Evaluated on bigram-backcopy without --tokens: its sequences are drawn without end.
constexpr std::int64_t kBackcopyTokens = 65536;

std::string model_directory(const std::string& path) {
  for (const std::string& directory : {path, newest_checkpoint(path)}) {
    if (is_checkpoint(directory)) return directory;
  }
  throw Error(fmt::format("{}: neither a model (no config.json) nor a run (no checkpoint/config.json)", path));
}

Task trained_on(const LoadedModel& model) { return model.trained ? model.trained->task : Task::text; }

/// The task that was given, or else the one that all models were trained on.
Task task_of(const EvaluationChoices& choices, const std::vector<LoadedModel>& models) {
  if (!choices.task.empty()) return parse_word<Task>("task", choices.task);
  const Task task = trained_on(models.front());
  for (const LoadedModel& model : models) {
    require(trained_on(model) == task, "{} was trained on {} and {} on {}: --task chooses one for both",
            models.front().name, word_of(task), model.name, word_of(trained_on(model)));
  }
  return task;
}

/// At most as many tokens as every model has positions for.
std::int64_t sequence_length(const EvaluationChoices& choices, const std::vector<LoadedModel>& models) {
  std::int64_t most = models.front().config.seq_len;
  for (const LoadedModel& model : models) most = std::min(most, model.config.seq_len);
  const std::int64_t tokens = choices.tokens.value_or(most);
  if (!choices.seq_len) return std::min(most, tokens);
  const std::int64_t seq_len = *choices.seq_len;
  require(seq_len <= most, "--seq-len {} is more than the model's {}, the most it has positions for", seq_len, most);
  require(!choices.tokens || tokens >= seq_len, "--tokens {} is less than a sequence of --seq-len {}", tokens, seq_len);
  return seq_len;
}

DataOptions data_options(const EvaluationChoices& choices, const std::vector<LoadedModel>& models) {
  DataOptions data;
  data.paths = choices.data;
  data.files.include = choices.include;
  data.task = task_of(choices, models);
  data.seq_len = sequence_length(choices, models);
  data.seed = choices.seed.value_or(models.front().trained ? models.front().trained->seed : data.seed);
  data.split = choices.held_out ? Split::training_and_tail : Split::all_held_out;
  // A text shorter than a sequence is evaluated as one shorter sequence.
  if (!choices.seq_len && !choices.held_out && data.task == Task::text) {
    data.seq_len = std::clamp<std::int64_t>(Corpus(data.paths, data.files).size() - 1, 1, data.seq_len);
  }
  return data;
}

metrics::MetricList metrics_of(const EvaluationChoices& choices, const SequenceSource& source) {
  metrics::MetricList out = metrics::that_apply(metrics::parse_metrics(choices.metrics), source.has_triggers());
  require(!out.empty(), "--metrics {}: only tasks with triggers have it, as bigram-backcopy",
          fmt::join(choices.metrics, ","));
  return out;
}

}  // namespace

LoadedModel load_model(const std::string& path) {
  const std::string directory = model_directory(path);
  Checkpoint checkpoint = load_checkpoint(directory, CheckpointParts::model);
  LoadedModel model{path, checkpoint.config, std::move(checkpoint.parameters), std::nullopt};
  if (checkpoint.trainer_state.empty()) return model;
  try {
    model.trained = read_state(checkpoint.trainer_state).settings;
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", directory, error.what()));
  }
  return model;
}

EvaluationInput evaluation_input(const EvaluationChoices& choices, const std::vector<LoadedModel>& models) {
  const DataOptions data = data_options(choices, models);
  EvaluationInput input;
  input.source = open_data(data);
  input.metrics = metrics_of(choices, *input.source);
  const std::int64_t all = data.task == Task::text ? std::numeric_limits<std::int64_t>::max() : kBackcopyTokens;
  input.plan =
      plan_evaluation(input.source->held_out_count(), choices.tokens.value_or(all) / data.seq_len, choices.batch);
  return input;
}

}  // namespace headgate::train
