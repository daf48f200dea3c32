// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "models/data/data.hpp"
#include "models/data/prose.hpp"
#include "models/io/scratch.hpp"
#include "models/layers/gate_variant.hpp"
#include "models/train/checkpoint.hpp"
#include "models/train/settings.hpp"
#include "models/train/trainer.hpp"

// Makes runs small enough to be trained many times.

namespace headgate::testing {

inline models::DecoderConfig small_model(const std::string& gate = "headwise") {
  models::DecoderConfig config;
  config.dim = 16;
  config.layers = 2;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 8;
  config.ffn = 24;
  config.seq_len = 16;
  config.gate = layers::parse_gate(gate);
  return config;
}

/// Makes data, settings and trainers of one kind.
class SmallRun {
 public:
  explicit SmallRun(train::Task task = train::Task::text) {
    write_bytes(scratch_ / "text", prose(4000));
    settings.paths = {scratch_ / "text"};
    settings.task = task;
    settings.seq_len = config.seq_len;
    settings.batch = 2;
    settings.schedule = {train::Decay::cosine, 1e-2, 0.1, 4, 20};
    settings.eval_tokens = 64;
    settings.threads = 2;
    if (task == train::Task::bigram_backcopy) config.vocab = 257;
  }

  /// Starts a trainer with the current settings and config.
  train::Trainer fresh() {
    open();
    return {config, settings, *source_};
  }

  train::Trainer resumed(const std::string& directory) {
    open();
    train::Checkpoint checkpoint = train::load_checkpoint(directory, train::CheckpointParts::all);
    const train::TrainerState state = train::read_state(checkpoint.trainer_state);
    return {std::move(checkpoint), state, *source_};
  }

  const train::SequenceSource& source() {
    open();
    return *source_;
  }
  std::string path(const std::string& name) const { return scratch_ / name; }

  models::DecoderConfig config = small_model();
  train::TrainSettings settings;

 private:
  void open() {
    if (source_) return;
    train::DataOptions options;
    options.paths = settings.paths;
    options.task = settings.task;
    options.seq_len = settings.seq_len;
    options.seed = settings.seed;
    source_ = train::open_data(options);
  }

  Scratch scratch_;
  std::unique_ptr<train::SequenceSource> source_;
};

}  // namespace headgate::testing
