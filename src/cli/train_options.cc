// SPDX-License-Identifier: Apache-2.0
#include "cli/train_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "cli/threads.hpp"
#include "cli/verbs.hpp"
#include "layers/gate_variant.hpp"
#include "models/config_file.hpp"
#include "train/task_defaults.hpp"

namespace headgate::cli {
namespace {

using layers::GateSite;
using models::DecoderConfig;
using train::Task;
using train::TrainSettings;

/// For messages: the fields by the options that set them; norm_eps has none but the file's key.
constexpr models::FieldNames kOptionNames{.where = "",
                                          .vocab = "--vocab",
                                          .dim = "--dim",
                                          .layers = "--layers",
                                          .heads = "--heads",
                                          .kv_heads = "--kv-heads",
                                          .head_dim = "--head-dim",
                                          .ffn = "--ffn",
                                          .seq_len = "--seq-len",
                                          .norm_eps = "rms_norm_eps",
                                          .rope_base = "--rope-base",
                                          .rope_fraction = "--rope-fraction",
                                          .init_std = "--init-std"};

template <typename T, typename Value>
void put(T& to, const Given<Value>& given) {
  if (given) to = *given;
}

/// Sizes that were not given follow those that were.
void derive_sizes(DecoderConfig& config, const ModelOptions& o) {
  if (o.heads && !o.kv_heads) config.kv_heads = config.heads % 2 == 0 ? config.heads / 2 : config.heads;
  if (o.dim && !o.ffn) config.ffn = 3 * config.dim;
  if ((o.dim || o.heads) && !o.head_dim) {
    if (config.heads < 1 || config.dim % config.heads != 0) {
      throw UsageError(
          fmt::format("--dim {} is not a multiple of --heads {}: give --head-dim", config.dim, config.heads));
    }
    config.head_dim = config.dim / config.heads;
  }
}

std::string gate_part_given(const ModelOptions& o) {
  if (!o.gate_fn.empty()) return "--gate-fn";
  if (!o.gate_op.empty()) return "--gate-op";
  if (!o.gate_source.empty()) return "--gate-source";
  if (o.gate_init_std) return "--gate-init-std";
  return o.gate_bias ? "--gate-bias" : "";
}

void apply_gate(layers::GateVariant& gate, const ModelOptions& o) {
  if (!o.gate.empty()) {
    const layers::GateVariant named = layers::parse_gate(o.gate);
    const layers::SinkKind sinks = gate.sinks;
    gate = named;
    if (named.sinks == layers::SinkKind::none) gate.sinks = sinks;
  }
  if (!o.gate_site.empty()) {
    gate.site = parse_word<GateSite>("--gate-site", o.gate_site);
    if (o.gate == "none") throw UsageError("--gate-site and --gate none contradict each other");
    if (gate.site != GateSite::none && gate.fn == GateFn::none) gate.fn = GateFn::sigmoid;
  }
  const std::string part = gate_part_given(o);
  if (!part.empty() && !has_gate(gate)) throw UsageError(part + " needs --gate");
  if (!o.gate_fn.empty()) gate.fn = parse_word<GateFn>("--gate-fn", o.gate_fn);
  if (!o.gate_op.empty()) gate.op = parse_word<GateOp>("--gate-op", o.gate_op);
  if (!o.gate_source.empty()) gate.source = parse_word<layers::GateSource>("--gate-source", o.gate_source);
  put(gate.init_std, o.gate_init_std);
  if (o.gate_bias) {
    gate.bias = layers::GateBias::learned;
    gate.bias_init = *o.gate_bias;
  }
  if (!o.output_control.empty()) {
    const std::string word = o.output_control == "silu" ? "output_silu" : o.output_control;
    gate.output_control = parse_word<layers::OutputControl>("--output-control", word);
  }
  if (!o.sinks.empty()) {
    gate.sinks = parse_word<layers::SinkKind>("--sinks", o.sinks == "learned" ? "learned_sinks" : o.sinks);
  }
}

/// `first` or `second` by its word; the option's type has two values.
template <typename Enum>
void put_word(Enum& to, const char* option, const std::string& word, std::pair<std::string_view, Enum> first,
              std::pair<std::string_view, Enum> second) {
  if (word.empty()) return;
  if (word != first.first && word != second.first) {
    throw UsageError(fmt::format("{} is '{}' but must be {} or {}", option, word, first.first, second.first));
  }
  to = word == first.first ? first.second : second.second;
}

void apply_words(DecoderConfig& config, const ModelOptions& o) {
  using layers::NormKind;
  using models::Embeddings;
  using models::QkNorm;
  put_word<NormKind>(config.norm, "--norm", o.norm, {"plain", NormKind::plain},
                     {"zero-centred", NormKind::zero_centred});
  put_word<QkNorm>(config.qk_norm, "--qk-norm", o.qk_norm, {"on", QkNorm::per_head}, {"off", QkNorm::none});
  put_word<Embeddings>(config.embeddings, "--embeddings", o.embeddings, {"tied", Embeddings::tied},
                       {"separate", Embeddings::separate});
}

void apply(TrainSettings& settings, const RunOptions& o) {
  if (!o.data.empty()) settings.paths = o.data;
  if (!o.include.empty()) settings.include = o.include;
  if (!o.task.empty()) settings.task = parse_word<train::Task>("task", o.task);
  if (!o.schedule.empty()) settings.schedule.decay = parse_word<train::Decay>("schedule", o.schedule);
  put(settings.batch, o.batch);
  put(settings.accumulate, o.accumulate);
  put(settings.schedule.steps, o.steps);
  put(settings.schedule.warmup, o.warmup);
  put(settings.schedule.peak, o.lr);
  put(settings.schedule.floor, o.lr_floor);
  put(settings.weight_decay, o.weight_decay);
  put(settings.beta2, o.beta2);
  put(settings.clip, o.clip);
  put(settings.seed, o.seed);
  put(settings.eval_every, o.eval_every);
  put(settings.eval_tokens, o.eval_tokens);
  put(settings.save_every, o.save_every);
  put(settings.threads, o.threads);
}

/// A run goes on with its own values: a given one may repeat them.
template <typename T>
void require_same(const char* option, const T& given, const T& run) {
  if (given != run) {
    throw UsageError(fmt::format("{} {} is not the run's {}, and cannot change on --resume", option, given, run));
  }
}

/// An evaluation takes whole sequences; fewer tokens than one has would not be what was asked for.
void require_eval_tokens(const RunOptions& o, const TrainSettings& settings) {
  if (o.eval_tokens && *o.eval_tokens < settings.seq_len) {
    throw UsageError(
        fmt::format("--eval-tokens {} is less than a sequence, which has {} tokens", *o.eval_tokens, settings.seq_len));
  }
}

}  // namespace

bool ModelOptions::any() const {
  return vocab || layers || dim || heads || kv_heads || head_dim || ffn || seq_len || rope_base || rope_fraction ||
         init_std || gate_init_std || gate_bias || sandwich_norm || match_params ||
         !(config_file + norm + qk_norm + embeddings + gate + gate_site + gate_fn + gate_op + gate_source +
           output_control + sinks)
              .empty();
}

models::DecoderConfig make_config(const ModelOptions& o, Task task) {
  DecoderConfig config = o.config_file.empty() ? train::task_model(task) : models::read_config(o.config_file);
  put(config.vocab, o.vocab);
  put(config.layers, o.layers);
  put(config.dim, o.dim);
  put(config.heads, o.heads);
  put(config.kv_heads, o.kv_heads);
  put(config.head_dim, o.head_dim);
  put(config.ffn, o.ffn);
  put(config.seq_len, o.seq_len);
  put(config.rope_base, o.rope_base);
  put(config.rope_fraction, o.rope_fraction);
  put(config.init_std, o.init_std);
  if (o.config_file.empty()) derive_sizes(config, o);
  apply_words(config, o);
  if (o.sandwich_norm) config.norm_placement = models::NormPlacement::sandwich;
  apply_gate(config.gate, o);
  models::validate(config, kOptionNames);
  return o.match_params ? models::match_params(config) : config;
}

train::TrainSettings make_settings(const RunOptions& o, std::int64_t seq_len) {
  TrainSettings settings = train::task_settings(o.task.empty() ? Task::text : parse_word<train::Task>("task", o.task));
  apply(settings, o);
  settings.seq_len = seq_len;
  require_eval_tokens(o, settings);
  settings.eval_tokens = std::max(settings.eval_tokens, seq_len);
  if (!o.warmup) settings.schedule.warmup = train::default_warmup(settings.schedule.steps);
  if (settings.schedule.warmup > settings.schedule.steps) {
    throw UsageError(
        fmt::format("--warmup {} is more than --steps {}", settings.schedule.warmup, settings.schedule.steps));
  }
  train::validate(settings);
  return settings;
}

train::TrainSettings resumed_settings(const RunOptions& o, const TrainSettings& run) {
  TrainSettings now = run;
  apply(now, o);
  require_same("--task", word_of(now.task), word_of(run.task));
  require_same("--schedule", word_of(now.schedule.decay), word_of(run.schedule.decay));
  require_same("--batch", now.batch, run.batch);
  require_same("--accumulate", now.accumulate, run.accumulate);
  require_same("--warmup", now.schedule.warmup, run.schedule.warmup);
  require_same("--lr", now.schedule.peak, run.schedule.peak);
  require_same("--lr-floor", now.schedule.floor, run.schedule.floor);
  require_same("--weight-decay", now.weight_decay, run.weight_decay);
  require_same("--beta2", now.beta2, run.beta2);
  require_same("--clip", now.clip, run.clip);
  require_same("--seed", now.seed, run.seed);
  if (const std::string complaint = thread_complaint(std::to_string(now.threads)); !complaint.empty()) {
    throw UsageError(fmt::format("the run's {}; --threads goes on with fewer", complaint));
  }
  require_eval_tokens(o, now);
  train::validate(now);
  return now;
}

}  // namespace headgate::cli
