// SPDX-License-Identifier: Apache-2.0
#include "models/train/task_defaults.hpp"

#include <algorithm>

#include "headgate/runtime.hpp"

namespace headgate::train {

models::DecoderConfig task_model(Task task) {
  models::DecoderConfig config;
  if (task == Task::bigram_backcopy) {
    config.vocab = kVocabWithBos;
    config.layers = 1;
    config.dim = 64;
    config.heads = 1;
    config.kv_heads = 1;
    config.head_dim = 64;
    config.ffn = 192;
    config.seq_len = 128;
    config.rope_fraction = 0.25;  // RoPE rotates only a quarter of the features, as in Qwen3-Next
  }
  return config;
}

TrainSettings task_settings(Task task) {
  TrainSettings settings;
  settings.task = task;
  settings.threads = default_threads();
  settings.eval_every = 250;
  settings.eval_tokens = 65536;
  settings.save_every = 500;
  settings.batch = task == Task::text ? 16 : 32;
  settings.schedule.steps = 1000;
  settings.schedule.warmup = default_warmup(settings.schedule.steps);
  settings.schedule.peak = task == Task::text ? 2e-3 : 1e-2;  // at smaller learning rates, no attention sink forms
  return settings;
}

std::int64_t default_warmup(std::int64_t steps) {
  constexpr std::int64_t kMost = 100;
  return std::min(kMost, steps / 10);
}

}  // namespace headgate::train
