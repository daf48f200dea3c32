// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "headgate/runtime.hpp"
#include "library/core/check.hpp"
#include "models/evaluate/evaluation.hpp"
#include "models/evaluate/registry.hpp"
#include "models/io/npy.hpp"
#include "models/layers/activation_rounding.hpp"
#include "models/layers/gate_variant.hpp"
#include "models/train/evaluation_choices.hpp"
#include "models/train/memory.hpp"
#include "tool/cli/dtype_option.hpp"
#include "tool/cli/eval_text.hpp"
#include "tool/cli/gate_threshold.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/cli/model_arguments.hpp"
#include "tool/cli/number.hpp"
#include "tool/cli/output_files.hpp"
#include "tool/cli/precision_option.hpp"
#include "tool/cli/threads.hpp"
#include "tool/cli/train_options.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/console/console.hpp"
#include "tool/console/progress.hpp"
#include "tool/console/terminal_text.hpp"

namespace headgate::cli {
namespace {

struct EvalOptions {
  std::vector<std::string> models;
  train::EvaluationChoices evaluation;
  int threads = 0;
  bool json = false;
  bool heads = false;
  std::string logits, against;
  std::optional<double> gate_threshold;
};

/// Parses the value of --tokens: a number from 1 to 2^40, or "all".
std::int64_t token_limit(const std::string& value) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (value == "all") return train::kAllTokens;
  const std::optional<std::int64_t> tokens = read_number<std::int64_t>(value);
  require(tokens && *tokens >= 1 && *tokens <= kMost, "--tokens: must be a whole number from 1 to {}, or all, got {}",
          kMost, value);
  return *tokens;
}

/// Returns the log-probability of every token of the vocabulary at each position, (sequences,T,vocab).
io::Array log_probabilities(train::HeldOutEvaluator& evaluator, const train::LoadedModel& model,
                            const train::EvaluationInput& input) {
  const std::int64_t sequences = input.plan.batch * input.plan.batches;
  io::Array out = io::make_array(DType::f32, {sequences, input.source->seq_len(), model.config.vocab});
  evaluator.log_probabilities(reinterpret_cast<float*>(out.data.get()), model.parameters.data());
  return out;
}

/// Evaluates a model, and compares it with `reference` unless that is null.
EvaluatedModel evaluated(const train::LoadedModel& model, const train::EvaluationInput& input,
                         const train::LoadedModel* reference, const EvalOptions& o) {
  const ExecutionContext context{.threads = o.threads};
  const auto plan = train::evaluation_memory(model.config, *input.source, input.plan, input.metrics,
                                             reference == nullptr ? nullptr : &reference->config);
  return train::with_memory(plan, 0, [&] {
    train::HeldOutEvaluator evaluator(model.config, *input.source, input.plan, input.metrics, context);
    console::ProgressBar bar;
    train::Evaluation evaluation = evaluator.evaluate(
        model.parameters.data(), [&](double done) { bar.show(done, {.text = "evaluating ", .path = model.name}); });
    bar.clear();
    if (!o.logits.empty()) {
      io::NpyWriter writer;
      writer.add(o.logits, log_probabilities(evaluator, model, input));
      writer.commit();
    }
    if (o.gate_threshold && layers::can_skip_attention(model.config.gate)) {
      evaluation.threshold = evaluator.compare_threshold(model.parameters.data(), *o.gate_threshold);
    }
    evaluation.comparisons = train::comparisons_of(evaluator, model, reference);
    return EvaluatedModel{model.name, model.config, std::move(evaluation), input.source};
  });
}

std::vector<NamedConfig> named(const std::vector<train::LoadedModel>& models) {
  std::vector<NamedConfig> out;
  out.reserve(models.size());
  for (const train::LoadedModel& model : models) out.push_back({model.name, model.config});
  return out;
}

int run_eval(const EvalOptions& o) {
  refuse_texts(o.models);
  if (!o.against.empty()) refuse_texts({o.against});
  check_text_options(o.evaluation.data, o.evaluation.token_ids);
  check_include("--text", o.evaluation.data, o.evaluation.include);
  if (!o.logits.empty() && o.models.size() > 1) throw UsageError("--logits takes one MODEL");
  if (o.heads && o.models.size() > 1 && !o.json) throw UsageError("--heads takes one MODEL, or --json");
  check_outputs({{"--logits", o.logits}}, [&o](InputFiles& inputs) {
    inputs.add_models("MODEL", o.models);
    if (!o.against.empty()) inputs.add_models("--against", {o.against});
    inputs.add_text("--text", o.evaluation.data, {.include = o.evaluation.include, .run = {}});
    inputs.add_file("--token-ids", o.evaluation.token_ids);
  });
  std::vector<train::LoadedModel> models;
  std::transform(o.models.begin(), o.models.end(), std::back_inserter(models), train::load_model);
  // Throws if a threshold is given and no model can use it. A model can if its gate multiplies the attention output.
  // If only some models can, the others are evaluated without the threshold.
  check_gate_threshold(o.gate_threshold, named(models));
  train::EvaluationChoices choices = o.evaluation;
  choices.against = !o.against.empty();
  if (choices.against) models.push_back(train::load_model(o.against));
  const train::LoadedModel* const reference = choices.against ? &models.back() : nullptr;
  const std::vector<train::EvaluationInput> inputs = train::evaluation_inputs(choices, models);
  const metrics::MetricList of_heads = metrics::of_heads(inputs.front().metrics);
  require(!o.heads || !of_heads.empty(), "--heads: none of the metrics that are asked for has figures of heads: {}",
          metrics::metric_names(metrics::of_heads(metrics::all_metrics())));
  if (const std::string& limit = inputs.front().limit; !limit.empty()) {
    console::note(fmt::format("headgate eval: reads {}; --tokens all reads all of it\n", limit));
  }
  std::set<std::string> left_out;
  for (const train::EvaluationInput& input : inputs) {
    for (const std::string& what : input.source->left_out().phrases()) {
      if (left_out.insert(what).second) console::note(fmt::format("left out: {}\n", console::terminal_text(what)));
    }
  }
  std::vector<EvaluatedModel> results;
  results.reserve(o.models.size());
  for (std::size_t i = 0; i < o.models.size(); ++i) results.push_back(evaluated(models[i], inputs[i], reference, o));
  const auto heads = o.heads ? train::HeadFigures::included : train::HeadFigures::left_out;
  if (o.json) {
    fmt::print("{}", json_text(results, heads));
  } else {
    fmt::print("{}", results.size() == 1 ? layers_text(results.front(), heads) : comparison_text(results));
  }
  int status = kSuccess;
  for (const EvaluatedModel& model : results) {
    if (!check_finite("eval", model.name, model.evaluation)) status = kCheckFailed;
  }
  return status;
}

/// Declares the arguments and options that select the models and the text to evaluate, and the option --json.
void declare_inputs(VerbOptions& verb, EvalOptions& o) {
  train::EvaluationChoices& choices = o.evaluation;
  verb.arguments("MODEL", o.models, std::string(kModelHelp) + "; several are compared");
  verb.values("--text", choices.data, "PATH",
              "UTF-8 text: a file, or a directory with all files below it, except those that are not UTF-8 and "
              "those that runs wrote; may be repeated");
  const Option ids =
      verb.value("--token-ids", choices.token_ids, "FILE.npy",
                 "Token ids, i32 or i64, in place of text: for models whose tokenizer is not there or not supported");
  declare_include(verb, choices.include).excludes(ids);
  declare_json(verb, o.json, "the figures");
  verb.flag("--held-out", choices.held_out, "Only the tail of the text that `headgate train` holds out").excludes(ids);
  verb.value("--task", choices.task, "TASK",
             "text or bigram-backcopy (default: the task that the model was trained on)")
      .suggests({"text", "bigram-backcopy"})
      .excludes(ids);
  verb.value("--seq-len", choices.seq_len, "N",
             "Tokens of a sequence (default: the most that every model takes, "
             "at most 512 where tokens are not bytes)")
      .range(1, 1 << 20);
  verb.word(
          "--tokens", [&choices](const std::string& value) { choices.tokens = token_limit(value); }, "N|all",
          fmt::format(
              "At most N tokens, in sequences spread evenly over the text, or all of it (default: at most {}; of "
              "models with different tokens, the text's first {} bytes). If N is less than a sequence, the "
              "sequence is shorter",
              train::kDefaultTokens, train::kDefaultBytes))
      .suggests({"all"});
}

/// Declares the options that select the metrics to compute and the way of computing them.
void declare_figures(VerbOptions& verb, EvalOptions& o) {
  train::EvaluationChoices& choices = o.evaluation;
  const metrics::MetricList every = metrics::all_metrics(), defaults = metrics::default_metrics();
  std::vector<std::string> names{"all"};
  for (const metrics::Metric* metric : every) names.emplace_back(metric->name);
  verb.values("--metrics", choices.metrics, "NAMES",
              "Only these metrics, separated by commas or repeated: " + metrics::metric_names(every) +
                  "; or all; a key of the JSON stands for the metric that prints it (default: " +
                  (defaults == every ? "all" : metrics::metric_names(defaults)) + ')')
      .suggests(names);
  verb.flag("--heads", o.heads,
            "Also the figures of each query head: " + metrics::metric_names(metrics::of_heads(metrics::all_metrics())));
  verb.value("--batch", choices.batch, "N", "Sequences evaluated at once, at most (default 16); some may be left over")
      .range(1, 1 << 16);
  verb.value(
          "--part", choices.part, "N",
          "Tokens that pass through a layer at once, at most, of a sequence that is longer (default 2048): memory for "
          "activations does not grow beyond. Such sequences are evaluated one at a time")
      .range(1, 1 << 20);
  declare_precision(verb, choices.precision, "products of matrices, logits too, and attention",
                    "Norms, softmax, the residual stream, the loss, experts, and attention of --gate-threshold stay "
                    "f32 (docs/reference/numerics.md)");
  verb.value("--seed", choices.seed, "N", "Seed of the sequences of bigram-backcopy (default: the run's)")
      .excludes(verb.declared("--token-ids"));
}

/// Declares the options that compare a model with rounded variants of itself, or with another model.
void declare_comparisons(VerbOptions& verb, EvalOptions& o) {
  train::EvaluationChoices& choices = o.evaluation;
  verb.value(
      "--gate-threshold", o.gate_threshold, "T",
      "Also compare loss and time with those where attention leaves out rows (queries of heads) whose gate is at "
      "most T in every feature; of gates that multiply the attention output");
  declare_dtype(verb, "--cache-dtype", choices.cache, {DType::i8},
                "Also compare the model with one whose keys and values are rounded to i8, with a scale for each token "
                "and head, as by `headgate generate --cache-dtype i8`: loss, KL divergence, most probable tokens");
  verb.value("--cache-first", choices.cache_first, "N",
             "Keys and values of the first N tokens of each sequence stay unrounded in that comparison (default 0)")
      .range(0, 1 << 20)
      .needs(verb.declared("--cache-dtype"));
  verb.values(
          "--activations", choices.activations, "WORDS",
          "Also compare the model with one that rounds the input of every matrix product to int8, with one scale for "
          "each token, one for each sequence, or one for each sequence without its first token, which is then not "
          "rounded: " +
              list_words<layers::ActivationRounding>() +
              ", separated by commas or repeated. Simulated: the rounded numbers are multiplied in f32. It says how "
              "much worse the model becomes, not how fast int8 would be")
      .suggests(words_in<Words<layers::ActivationRounding>>());
  verb.value(
      "--against", o.against, "MODEL",
      "Also compare each model with this one, which reads the same tokens: weights in a GGUF format with those in "
      "f32, say. Loss, KL divergence from this model, most probable tokens");
}

}  // namespace

Verb add_eval(CommandLine& line) {
  auto o = std::make_shared<EvalOptions>();
  VerbOptions verb = line.add_verb(
      "eval",
      "Loss, sinks, activations and gate scores of a model on text\n\n"
      "MODEL is a directory made by `headgate train`, a directory of Hugging Face's with config.json and "
      "model.safetensors or its shards, or a GGUF file. Several are evaluated on the same sequences and compared: a "
      "gated model's figures say little without those of a model "
      "without a gate. A text is read as the model's own tokens, by its tokenizer.json or GGUF file, or as bytes. "
      "Attention is averaged over heads and queries; query 0, which sees itself alone, does not count.");
  declare_inputs(verb, *o);
  declare_figures(verb, *o);
  declare_comparisons(verb, *o);
  declare_threads(verb, o->threads, "Threads (default: all cores)");
  verb.value("--logits", o->logits, "OUT.npy",
             "Write the log-probability of every token at every position, (sequences,T,vocab) in f32 and nats");
  verb.footer(json_keys_help() +
              "Figures of attention are null where sequences have one token. For several MODELs\n"
              "a list of such objects, each with its model, gate and parameters.\n"
              "\n"
              "The uniform value is the first-token attention of queries that weigh all keys\n"
              "they see equally; the sink rate is the share of heads above 0.3. A layer's loss\n"
              "is the loss of a model that ends after this layer: its output goes through the\n"
              "last norm and the output head. A figure that is not finite is null in JSON, and\n"
              "the exit status is 1, but for perplexity: e to a finite loss may be infinite.\n"
              "\n"
              "Examples:\n"
              "  headgate eval run --text book.txt --held-out --json\n"
              "  headgate eval run-plain run-gated --text book.txt --held-out\n"
              "  headgate eval model.gguf --token-ids ids.npy --logits log_probs.npy");
  return {"eval", [o] { return run_eval(*o); }, /*runs_models=*/true};
}

}  // namespace headgate::cli
