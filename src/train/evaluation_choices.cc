// SPDX-License-Identifier: Apache-2.0
#include "train/evaluation_choices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.hpp"
#include "io/staged_directory.hpp"
#include "models/model_file.hpp"
#include "train/corpus.hpp"
#include "train/run_directory.hpp"
#include "train/token_source.hpp"

namespace headgate::train {
namespace {

/// Evaluated on bigram-backcopy without --tokens: its sequences are drawn without end.
constexpr std::int64_t kBackcopyTokens = 65536;

/// Tokens of a sequence of models that others made, where --seq-len is not given: few of the positions they have.
constexpr std::int64_t kOthersSeqLen = 512;

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
  bool all_read_bytes = true;
  for (const LoadedModel& model : models) {
    most = std::min(most, model.config.seq_len);
    all_read_bytes = all_read_bytes && model.reads_bytes;
  }
  if (!choices.seq_len && !all_read_bytes) most = std::min(most, kOthersSeqLen);
  const std::int64_t tokens = choices.tokens.value_or(most);
  if (!choices.seq_len) return std::min(most, tokens);
  const std::int64_t seq_len = *choices.seq_len;
  require(seq_len <= most, "--seq-len {} is more than the model's {}, the most it has positions for", seq_len, most);
  require(!choices.tokens || tokens >= seq_len, "--tokens {} is less than a sequence of --seq-len {}", tokens, seq_len);
  return seq_len;
}

/// The first token's share has no meaning for queries that do not see it.
void require_seen_first_tokens(const metrics::MetricList& metrics, std::int64_t seq_len,
                               const std::vector<LoadedModel>& models) {
  for (const LoadedModel& model : models) {
    if (model.config.window == 0 || model.config.window >= seq_len) continue;
    for (const metrics::Metric* metric : metrics) {
      require(!metric->inputs.has(metrics::Input::first_token_weights),
              "--seq-len {} is more than the window of {}, {}: queries beyond it do not see the first token, which "
              "--metrics {} is about",
              seq_len, model.name, model.config.window, metric->name);
    }
  }
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

/// Metrics and sequences for data that is open.
EvaluationInput with_plan(EvaluationInput input, const EvaluationChoices& choices,
                          const std::vector<LoadedModel>& models) {
  input.metrics = metrics_of(choices, *input.source);
  require_seen_first_tokens(input.metrics, input.source->seq_len(), models);
  const std::int64_t all = input.source->has_triggers() ? kBackcopyTokens : std::numeric_limits<std::int64_t>::max();
  input.plan = plan_evaluation(input.source->held_out_count(), choices.tokens.value_or(all) / input.source->seq_len(),
                               choices.batch);
  return input;
}

}  // namespace

std::string model_path(const std::string& path) {
  if (models::is_gguf(path)) return path;
  for (const std::string& directory : {path, newest_checkpoint(path)}) {
    if (is_checkpoint(directory)) return io::present_directory(directory);
  }
  throw Error(fmt::format("{}: neither a model (no config.json) nor a run (no checkpoint/config.json)", path));
}

LoadedModel load_model(const std::string& path) {
  const std::string directory = model_path(path);
  const models::ModelFile file(directory);
  LoadedModel model{path, file.config(), file.read(), std::nullopt};
  const std::string state = file.gguf() != nullptr ? "" : read_trainer_state(directory);
  // A byte is a token of what was trained here, and of nothing else with so many tokens.
  constexpr std::int64_t kBytes = 256;
  model.reads_bytes = !state.empty() || (&file.family() == &models::kHeadgate || model.config.vocab <= kBytes);
  if (state.empty()) return model;
  try {
    model.trained = read_state(state).settings;
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", directory, error.what()));
  }
  return model;
}

EvaluationInput evaluation_input(const EvaluationChoices& choices, const std::vector<LoadedModel>& models) {
  EvaluationInput input;
  if (!choices.token_ids.empty()) {
    std::vector<std::int32_t> ids = read_token_ids(choices.token_ids);
    std::int64_t seq_len = sequence_length(choices, models);
    if (!choices.seq_len) seq_len = std::clamp<std::int64_t>(static_cast<std::int64_t>(ids.size()) - 1, 1, seq_len);
    input.source = std::make_unique<TokenSource>(std::move(ids), seq_len);
    return with_plan(std::move(input), choices, models);
  }
  for (const LoadedModel& model : models) {
    require(model.reads_bytes,
            "{}: a vocabulary of {} tokens that are no bytes; --token-ids takes a text's ids from a .npy file",
            model.name, model.config.vocab);
  }
  const DataOptions data = data_options(choices, models);
  input.source = open_data(data);
  return with_plan(std::move(input), choices, models);
}

}  // namespace headgate::train
