// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.hpp"
#include "models/config.hpp"
#include "train/settings.hpp"

// The options of `headgate train`: what was given, laid over a file's, a task's or a run's values.

namespace headgate::cli {

template <typename T>
using Given = std::optional<T>;  ///< empty: the option was not on the command line

/// What decides the model.
struct ModelOptions {
  std::string config_file;
  Given<std::int64_t> vocab, layers, dim, heads, kv_heads, head_dim, ffn, seq_len;
  Given<double> rope_base, rope_fraction, init_std;
  std::string norm, qk_norm, embeddings;  ///< words; empty: not given
  std::string gate, gate_site, gate_fn, gate_op, gate_source, output_control, sinks;
  Given<double> gate_init_std, gate_bias;
  bool sandwich_norm = false;
  bool match_params = false;

  /// Whether any of them was given.
  bool any() const;
};

/// What decides the run.
struct RunOptions {
  std::vector<std::string> data, include;
  std::string task, schedule;
  Given<std::int64_t> batch, accumulate, steps, warmup, eval_every, eval_tokens, save_every, stop_at, log_every;
  Given<double> lr, lr_floor, weight_decay, beta2, clip;
  Given<std::uint64_t> seed;
  Given<int> threads;
};

struct TrainOptions {
  ModelOptions model;
  RunOptions run;
  std::string out;
  bool resume = false;
};

void declare_train_options(VerbOptions& verb, TrainOptions& options);

/// The task's own model, or the config file's, with the options over it.
models::DecoderConfig make_config(const ModelOptions& options, train::Task task);

/// The task's own settings with the options over them. `seq_len` is the model's.
train::TrainSettings make_settings(const RunOptions& options, std::int64_t seq_len);

/// Declares --include, which belongs to --data, in a verb.
Option declare_include(VerbOptions& verb, std::vector<std::string>& patterns);

/// A run's settings with those options over them that may change on the way: data (of the same content), steps,
/// evaluation, saving, threads. Throws UsageError for any other that differs.
train::TrainSettings resumed_settings(const RunOptions& options, const train::TrainSettings& run);

}  // namespace headgate::cli
