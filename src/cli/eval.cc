// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/eval_text.hpp"
#include "cli/threads.hpp"
#include "cli/train_options.hpp"
#include "cli/verbs.hpp"
#include "console/console.hpp"
#include "console/progress.hpp"
#include "core/check.hpp"
#include "headgate/runtime.hpp"
#include "layers/gate_variant.hpp"
#include "metrics/registry.hpp"
#include "train/checkpoint.hpp"
#include "train/corpus.hpp"
#include "train/evaluation.hpp"
#include "train/memory.hpp"
#include "train/run_directory.hpp"
#include "train/settings.hpp"

namespace headgate::cli {
namespace {

struct EvalOptions {
  std::vector<std::string> models;
  std::vector<std::string> data, include, metrics;
  std::string task;
  std::optional<std::int64_t> seq_len, tokens;
  std::optional<std::uint64_t> seed;
  std::int64_t batch = 16;
  int threads = 0;
  bool held_out = false;
  bool json = false;
};

constexpr std::int64_t kBackcopyTokens = 65536;  // drawn where --tokens is not given: there is no end of them

/// A model's directory: a checkpoint, or a run that holds one.
std::string model_directory(const std::string& path) {
  for (const std::string& directory : {path, train::newest_checkpoint(path)}) {
    if (train::is_checkpoint(directory)) return directory;
  }
  throw UsageError(fmt::format("{}: neither a model (no config.json) nor a run (no checkpoint/config.json)", path));
}

std::optional<train::TrainSettings> settings_of(const train::Checkpoint& checkpoint, const std::string& directory) {
  if (checkpoint.trainer_state.empty()) return std::nullopt;
  try {
    return train::read_state(checkpoint.trainer_state).settings;
  } catch (const Error& error) {
    throw UsageError(fmt::format("{}: {}", directory, error.what()));
  }
}

/// A model read from its directory.
struct Model {
  std::string name;  ///< as it was given
  train::Checkpoint checkpoint;
  std::optional<train::TrainSettings> trained;
};

std::vector<Model> read_models(const std::vector<std::string>& paths) {
  std::vector<Model> out;
  out.reserve(paths.size());
  for (const std::string& path : paths) {
    const std::string directory = model_directory(path);
    Model model{path, train::load_checkpoint(directory, train::CheckpointParts::model), std::nullopt};
    model.trained = settings_of(model.checkpoint, directory);
    out.push_back(std::move(model));
  }
  return out;
}

/// The task that was asked for, or else the one that all models were trained on, or else text.
train::Task task_of(const EvalOptions& o, const std::vector<Model>& models) {
  if (!o.task.empty()) return parse_word<train::Task>("task", o.task);
  const auto trained_on = [](const Model& model) { return model.trained ? model.trained->task : train::Task::text; };
  const train::Task task = trained_on(models.front());
  for (const Model& model : models) {
    if (trained_on(model) != task) {
      throw UsageError(fmt::format("{} was trained on {} and {} on {}: --task chooses one for both",
                                   models.front().name, word_of(task), model.name, word_of(trained_on(model))));
    }
  }
  return task;
}

/// Tokens of a sequence: at most as many as every model has positions for.
std::int64_t sequence_length(const EvalOptions& o, const std::vector<Model>& models) {
  std::int64_t most = models.front().checkpoint.config.seq_len;
  for (const Model& model : models) most = std::min(most, model.checkpoint.config.seq_len);
  if (!o.seq_len) return std::min(most, o.tokens.value_or(most));
  if (*o.seq_len > most) {
    throw UsageError(
        fmt::format("--seq-len {} is more than the model's {}, the most it has positions for", *o.seq_len, most));
  }
  if (o.tokens && *o.tokens < *o.seq_len) {
    throw UsageError(fmt::format("--tokens {} is less than a sequence of --seq-len {}", *o.tokens, *o.seq_len));
  }
  return *o.seq_len;
}

/// Options first, then what the models were trained with, then text.
train::DataOptions data_options(const EvalOptions& o, const std::vector<Model>& models) {
  train::DataOptions data;
  data.paths = o.data;
  data.files.include = o.include;
  data.task = task_of(o, models);
  data.seq_len = sequence_length(o, models);
  data.seed = o.seed.value_or(models.front().trained ? models.front().trained->seed : data.seed);
  data.split = o.held_out ? train::Split::training_and_tail : train::Split::all_held_out;
  // A text shorter than a sequence is a sequence of its own.
  if (!o.seq_len && !o.held_out && data.task == train::Task::text) {
    data.seq_len = std::clamp<std::int64_t>(train::Corpus(o.data, data.files).size() - 1, 1, data.seq_len);
  }
  return data;
}

EvaluatedModel evaluated(const Model& model, const train::SequenceSource& source, const train::EvaluationPlan& plan,
                         const metrics::MetricList& metrics, const ExecutionContext& context) {
  const models::DecoderConfig& config = model.checkpoint.config;
  return train::with_memory(train::evaluation_memory(config, source, plan, metrics), 0, [&] {
    train::HeldOutEvaluator evaluator(config, source, plan, metrics, context);
    console::ProgressBar bar;
    const train::Evaluation evaluation = evaluator.evaluate(
        model.checkpoint.parameters.data(), [&](double done) { bar.show(done, "evaluating " + model.name); });
    bar.clear();
    return EvaluatedModel{model.name, config, evaluation};
  });
}

/// One object for one model; for several a list of such objects, each with its model.
nlohmann::ordered_json models_json(const std::vector<EvaluatedModel>& models) {
  if (models.size() == 1) return train::evaluation_json(models.front().evaluation);
  auto out = nlohmann::ordered_json::array();
  for (const EvaluatedModel& model : models) {
    nlohmann::ordered_json object = {{"model", model.name},
                                     {"gate", layers::gate_name(model.config.gate)},
                                     {"parameters", models::parameter_count(model.config)}};
    object.update(train::evaluation_json(model.evaluation));
    out.push_back(std::move(object));
  }
  return out;
}

/// Where a model's numbers stop being finite; empty where they are.
std::string not_finite(const metrics::Report& report) {
  for (std::size_t i = 0; i < report.layers.size(); ++i) {
    if (!metrics::is_finite(report.layers[i])) return fmt::format("in layer {}", i);
  }
  if (!metrics::is_finite(report.overall)) return "in the loss";
  return report.backcopy && !metrics::is_finite(*report.backcopy) ? "in the figures by trigger" : "";
}

/// The metrics that were asked for. Throws where the task has none of them.
metrics::MetricList metrics_of(const EvalOptions& o, const train::SequenceSource& source) {
  const metrics::MetricList asked = metrics::parse_metrics(o.metrics);
  metrics::MetricList out = metrics::that_apply(asked, source.has_triggers());
  if (out.empty()) {
    throw UsageError(
        fmt::format("--metrics {}: only tasks with triggers have it, as bigram-backcopy", fmt::join(o.metrics, ",")));
  }
  return out;
}

/// "loss, layer_loss, …".
std::string names_text(const metrics::MetricList& metrics) {
  std::string out;
  for (const metrics::Metric* metric : metrics) out += fmt::format("{}{}", out.empty() ? "" : ", ", metric->name);
  return out;
}

int run_eval(const EvalOptions& o) {
  const std::vector<Model> models = read_models(o.models);
  const train::DataOptions data = data_options(o, models);
  const auto source = train::open_data(data);
  for (const std::string& what : source->left_out().phrases())
    console::say(stderr, fmt::format("left out: {}\n", what));
  const metrics::MetricList metrics = metrics_of(o, *source);
  const std::int64_t all = data.task == train::Task::text ? std::numeric_limits<std::int64_t>::max() : kBackcopyTokens;
  const std::int64_t sequences = o.tokens.value_or(all) / data.seq_len;
  const train::EvaluationPlan plan = train::plan_evaluation(source->held_out_count(), sequences, o.batch);
  std::vector<EvaluatedModel> results;
  results.reserve(models.size());
  for (const Model& model : models) results.push_back(evaluated(model, *source, plan, metrics, {.threads = o.threads}));
  if (o.json) {
    fmt::print("{}\n", models_json(results).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    fmt::print("{}", results.size() == 1 ? layers_text(results.front()) : comparison_text(results));
  }
  int status = kSuccess;
  for (const EvaluatedModel& model : results) {
    const std::string where = not_finite(model.evaluation.report);
    if (where.empty()) continue;
    fmt::print(stderr, "headgate eval: {}: the model gives numbers that are not finite, first {}\n", model.name, where);
    status = kCheckFailed;
  }
  return status;
}

}  // namespace

Verb add_eval(CommandLine& line) {
  auto o = std::make_shared<EvalOptions>();
  VerbOptions verb = line.add_verb(
      "eval",
      "Loss, sinks, activations and gate scores of a model on text\n\n"
      "MODEL is a directory with config.json and model.safetensors, or one that `headgate train` made. Several are "
      "evaluated on the same sequences and compared: a gated model's figures say little without those of a model "
      "without a gate. Attention is averaged over heads and queries; query 0, which sees itself alone, does not "
      "count.");
  const metrics::MetricList every = metrics::all_metrics(), defaults = metrics::default_metrics();
  verb.arguments("MODEL", o->models, "A model's directory; several are compared");
  verb.values("--data", o->data, "PATH",
              "UTF-8 text: a file, or a directory with all files below it, but for those that are not UTF-8 and for "
              "what runs have written; may be given again")
      .required();
  declare_include(verb, o->include);
  verb.flag("--json", o->json, "Print JSON");
  verb.flag("--held-out", o->held_out, "Only the tail of the text that `headgate train` holds out");
  verb.value("--task", o->task, "TASK", "text or bigram-backcopy (default: the task that the model was trained on)");
  verb.value("--seq-len", o->seq_len, "N", "Tokens of a sequence (default: the most that every model takes)")
      .range(1, 1 << 20);
  verb.value("--tokens", o->tokens, "N",
             "At most so many tokens, in sequences spread evenly over the text (default: all of it; "
             "bigram-backcopy 65536). Fewer than a sequence has make a shorter one")
      .range(std::int64_t{1}, std::int64_t{1} << 40);
  verb.values("--metrics", o->metrics, "NAMES",
              "Only these metrics, separated by commas or given again: " + names_text(every) +
                  "; or all (default: " + (defaults == every ? "all" : names_text(defaults)) + ')');
  verb.value("--batch", o->batch, "N", "Sequences evaluated at once, at most (default 16); some may be left over")
      .range(1, 1 << 16);
  verb.value("--seed", o->seed, "N", "Of drawn sequences (default: the run's)");
  declare_threads(verb, o->threads, "Threads (default: all cores)");
  verb.footer(json_keys_help() +
              "Figures of attention are null where sequences have one token. For several MODELs\n"
              "a list of such objects, each with its model, gate and parameters.\n"
              "\n"
              "The uniform value is what first-token attention would be if each query looked at\n"
              "all it sees alike; the sink rate is the share of heads above 0.3. A layer's loss\n"
              "is that of the model that ends after it: the last norm and the logits on its output.\n"
              "A figure that is not finite is null in JSON, and the exit status is 1.\n"
              "\n"
              "Examples:\n"
              "  headgate eval run --data book.txt --held-out --json\n"
              "  headgate eval run-plain run-gated --data book.txt --held-out");
  return {"eval", [o] { return run_eval(*o); }};
}

}  // namespace headgate::cli
