// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/progress.hpp"
#include "cli/train_options.hpp"
#include "cli/verbs.hpp"
#include "core/check.hpp"
#include "headgate/runtime.hpp"
#include "layers/gate_variant.hpp"
#include "train/checkpoint.hpp"
#include "train/corpus.hpp"
#include "train/evaluation.hpp"
#include "train/run_directory.hpp"
#include "train/settings.hpp"

namespace headgate::cli {
namespace {

struct EvalOptions {
  std::string model;
  std::vector<std::string> data, include;
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

/// Options first, then what the model was trained with, then text.
train::DataOptions data_options(const EvalOptions& o, const models::DecoderConfig& config,
                                const std::optional<train::TrainSettings>& trained) {
  train::DataOptions data;
  data.paths = o.data;
  data.files.include = o.include;
  data.task = !o.task.empty() ? train::parse_task(o.task) : trained ? trained->task : train::Task::text;
  data.seq_len = o.seq_len.value_or(config.seq_len);
  data.seed = o.seed.value_or(trained ? trained->seed : data.seed);
  data.split = o.held_out ? train::Split::training_and_tail : train::Split::all_held_out;
  if (data.seq_len > config.seq_len) {
    throw UsageError(fmt::format("--seq-len {} is more than the model's {}, the most it has positions for",
                                 data.seq_len, config.seq_len));
  }
  // A text shorter than a sequence is a sequence of its own.
  if (!o.seq_len && !o.held_out && data.task == train::Task::text) {
    data.seq_len = std::clamp<std::int64_t>(train::Corpus(o.data, data.files).size() - 1, 1, data.seq_len);
  }
  return data;
}

std::string gate_cells(const models::AttentionStatistics& s) {
  if (!s.gate_mean) return fmt::format("{:>8}{:>8}{:>8}", "-", "-", "-");
  return fmt::format("{:>8.4f}{:>8.4f}{:>8.4f}", *s.gate_mean, s.gate_below_tenth.value_or(0.0),
                     s.gate_below_hundredth.value_or(0.0));
}

std::string figures_row(const std::string& name, const models::Figures& figures) {
  const models::AttentionStatistics& s = figures.attention;
  return fmt::format("{:>6}{:>9.4f}{:>10.4f}{:>9.4f}{:>8.3f}{:>10.2f}{}\n", name, figures.loss.nats,
                     s.first_token_attention, s.first_token_attention_uniform, s.sink_rate, s.massive_activation,
                     gate_cells(s));
}

std::string backcopy_text(const models::BackcopyReport& r) {
  const auto gate = [](const std::optional<double>& g) {
    return g ? fmt::format("{:>8.4f}", *g) : fmt::format("{:>8}", "-");
  };
  return fmt::format(
      "\n{:>16}{:>8}{:>8}{:>8}\n{:>16}{:>8.4f}{}{:>8.4f}\n{:>16}{:>8.4f}{}{:>8.4f}\n"
      "norm of the BOS value over the others': {:.4f}\n",
      "", "to BOS", "gate", "loss", "trigger", r.bos_attention_trigger, gate(r.gate_trigger), r.loss_trigger,
      "other position", r.bos_attention_other, gate(r.gate_other), r.loss_other, r.bos_value_norm_ratio);
}

void print_text(const train::Evaluation& evaluation, const models::DecoderConfig& config) {
  const models::EvaluationReport& report = evaluation.report;
  fmt::print("{} parameters, gate {}; {} tokens\n", models::parameter_count(config), layers::gate_name(config.gate),
             evaluation.tokens);
  const models::LossFigures& loss = report.overall.loss;
  fmt::print("loss {:.4f} nats, {:.4f} bits per byte, perplexity {:.4f}\n\n", loss.nats, loss.bits_per_token,
             loss.perplexity);
  std::string table = fmt::format("{:>6}{:>9}{:>10}{:>9}{:>8}{:>10}{:>8}{:>8}{:>8}\n", "layer", "loss", "to first",
                                  "uniform", "sinks", "max |h|", "gate", "<0.1", "<0.01");
  for (std::size_t i = 0; i < report.layers.size(); ++i) table += figures_row(std::to_string(i), report.layers[i]);
  table += figures_row("all", report.overall);
  if (evaluation.backcopy) table += backcopy_text(*evaluation.backcopy);
  fmt::print("{}", table);
}

/// Where a model's numbers stop being finite; empty where they are.
std::string not_finite(const models::EvaluationReport& report) {
  for (std::size_t i = 0; i < report.layers.size(); ++i) {
    if (!models::is_finite(report.layers[i])) return fmt::format("in layer {}", i);
  }
  return models::is_finite(report.overall) ? "" : "in the loss";
}

int run_eval(const EvalOptions& o) {
  const std::string directory = model_directory(o.model);
  const train::Checkpoint checkpoint = train::load_checkpoint(directory, train::CheckpointParts::model);
  const auto data = data_options(o, checkpoint.config, settings_of(checkpoint, directory));
  const auto source = train::open_data(data);
  for (const std::string& what : source->left_out().phrases()) fmt::print(stderr, "left out: {}\n", what);
  omp_set_num_threads(o.threads == 0 ? default_threads() : o.threads);
  const std::int64_t all = data.task == train::Task::text ? std::numeric_limits<std::int64_t>::max() : kBackcopyTokens;
  const std::int64_t sequences = std::max<std::int64_t>(1, o.tokens.value_or(all) / data.seq_len);
  const train::EvaluationPlan plan = train::plan_evaluation(source->held_out_count(), sequences, o.batch);
  train::HeldOutEvaluator evaluator(checkpoint.config, *source, plan);
  ProgressBar bar;
  const train::Evaluation evaluation =
      evaluator.evaluate(checkpoint.parameters.data(), [&bar](double done) { bar.show(done, "evaluating"); });
  bar.clear();
  if (o.json) {
    fmt::print("{}\n", train::evaluation_json(evaluation).dump(2));
  } else {
    print_text(evaluation, checkpoint.config);
  }
  if (const std::string where = not_finite(evaluation.report); !where.empty()) {
    fmt::print(stderr, "headgate eval: {}: the model gives numbers that are not finite, first {}\n", directory, where);
    return kCheckFailed;
  }
  return kSuccess;
}

}  // namespace

Verb add_eval(CommandLine& line) {
  auto o = std::make_shared<EvalOptions>();
  VerbOptions verb = line.add_verb(
      "eval",
      "Loss, sinks, activations and gate scores of a model on text\n\n"
      "MODEL is a directory with config.json and model.safetensors, or one that `headgate train` made. Attention is "
      "averaged over heads and queries; query 0, which sees itself alone, does not count.");
  verb.argument("MODEL", o->model, "The model's directory");
  verb.values("--data", o->data, "PATH",
              "UTF-8 text: a file, or a directory with all files below it, but for those that are not UTF-8 and for "
              "what runs have written; may be given again")
      .required();
  declare_include(verb, o->include);
  verb.flag("--json", o->json, "Print JSON");
  verb.flag("--held-out", o->held_out, "Only the tail of the text that `headgate train` holds out");
  verb.value("--task", o->task, "TASK", "text or bigram-backcopy (default: the task that the model was trained on)");
  verb.value("--seq-len", o->seq_len, "N", "Tokens of a sequence (default: the model's)").range(1, 1 << 20);
  verb.value("--tokens", o->tokens, "N",
             "At most so many tokens, in sequences spread evenly over the text (default: all of it; "
             "bigram-backcopy 65536)")
      .range(std::int64_t{1}, std::int64_t{1} << 40);
  verb.value("--batch", o->batch, "N", "Sequences evaluated at once, at most (default 16); some may be left over")
      .range(1, 1 << 16);
  verb.value("--seed", o->seed, "N", "Of drawn sequences (default: the run's)");
  verb.value("--threads", o->threads, "N", "Threads (default: all cores)").range(1, 1024);
  verb.footer(
      "JSON keys: loss_nats bits_per_byte perplexity first_token_attention\n"
      "  first_token_attention_uniform sink_rate massive_activation gate_mean\n"
      "  gate_below_0.1 gate_below_0.01 (null without a gate); layers, a list of the\n"
      "  same; tokens; and on bigram-backcopy, backcopy:\n"
      "  bos_attention_trigger bos_attention_other gate_trigger gate_other\n"
      "  loss_trigger loss_other bos_value_norm_ratio\n"
      "\n"
      "The uniform value is what first-token attention would be if each query looked at\n"
      "all it sees alike; the sink rate is the share of heads above 0.3. A layer's loss\n"
      "is that of the model that ends after it: the last norm and the logits on its output.\n"
      "A figure that is not finite is null in JSON, and the exit status is 1.\n"
      "\n"
      "Example:\n"
      "  headgate eval run --data book.txt --held-out --json");
  return {"eval", [o] { return run_eval(*o); }};
}

}  // namespace headgate::cli
