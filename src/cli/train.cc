// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <omp.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "cli/machine.hpp"
#include "cli/shell_word.hpp"
#include "cli/train_display.hpp"
#include "cli/train_options.hpp"
#include "cli/verbs.hpp"
#include "core/check.hpp"
#include "headgate/runtime.hpp"
#include "layers/gate_variant.hpp"
#include "train/checkpoint.hpp"
#include "train/loop.hpp"
#include "train/trainer.hpp"

namespace headgate::cli {
namespace {

using train::TrainSettings;

constexpr int kSignalStatus = 128;  // + the signal's number, as shells have it

/// A run ready to go: the trainer reads from the source.
struct Run {
  std::unique_ptr<train::SequenceSource> source;
  std::unique_ptr<train::Trainer> trainer;
};

Run fresh_run(const TrainOptions& o) {
  if (o.run.data.empty()) throw UsageError("--data is required");
  if (train::is_checkpoint(train::checkpoint_directory(o.out))) {
    throw UsageError(fmt::format("--out {} holds a run: --resume goes on with it, another --out starts anew", o.out));
  }
  const train::Task task = o.run.task.empty() ? train::Task::text : train::parse_task(o.run.task);
  const models::DecoderConfig config = make_config(o.model, task);
  const TrainSettings settings = make_settings(o.run, config.seq_len);
  Run run;
  run.source = train::open_data(train::data_of(settings, o.out));
  omp_set_num_threads(settings.threads);
  run.trainer = std::make_unique<train::Trainer>(config, settings, *run.source);
  return run;
}

/// A trainer state that names the file it came from when it is refused.
train::TrainerState state_of(const train::Checkpoint& checkpoint, const std::string& directory) {
  try {
    return train::read_state(checkpoint.trainer_state);
  } catch (const Error& error) {
    throw UsageError(fmt::format("{}: {}", directory, error.what()));
  }
}

Run resumed_run(const TrainOptions& o) {
  const std::string directory = train::checkpoint_directory(o.out);
  if (!train::is_checkpoint(directory)) throw UsageError(fmt::format("--resume: {} holds no checkpoint", directory));
  train::Checkpoint checkpoint = train::load_checkpoint(directory, train::CheckpointParts::all);
  train::TrainerState state = state_of(checkpoint, directory);
  const int threads_before = state.settings.threads;
  state.settings = resumed_settings(o.run, state.settings);
  if (o.model.any() && make_config(o.model, state.settings.task) != checkpoint.config) {
    throw UsageError(
        fmt::format("the options make another model than the one in {}: leave them out on --resume", directory));
  }
  if (state.settings.threads != threads_before) {
    fmt::print("note: the run had {} threads; with {} the last bits of its numbers change\n", threads_before,
               state.settings.threads);
  }
  Run run;
  run.source = train::open_data(train::data_of(state.settings, o.out));
  omp_set_num_threads(state.settings.threads);
  run.trainer = std::make_unique<train::Trainer>(std::move(checkpoint), state, *run.source);
  return run;
}

void print_model(const models::DecoderConfig& c) {
  fmt::print("model   {} layers, dim {}, {} heads on {} kv heads of {}, ffn {}, vocab {}: {} parameters\n", c.layers,
             c.dim, c.heads, c.kv_heads, c.head_dim, c.ffn, c.vocab, models::parameter_count(c));
  fmt::print("gate    {}{}\n", layers::gate_name(c.gate),
             c.norm_placement == models::NormPlacement::sandwich ? ", sandwich norm" : "");
}

void print_memory(const train::Trainer& trainer) {
  double total = 0.0;
  std::string items;
  for (const models::MemoryItem& item : trainer.memory_plan()) {
    total += static_cast<double>(item.bytes);
    items += fmt::format("        {:>10}  {}\n", bytes_text(static_cast<double>(item.bytes)), item.name);
  }
  fmt::print("memory  {} for every step, taken now:\n{}", bytes_text(total), items);
}

void print_start(const Run& run) {
  const train::Trainer& trainer = *run.trainer;
  const TrainSettings& s = trainer.settings();
  print_model(trainer.config());
  fmt::print("data    {}, {}\n", train::task_name(s.task), run.source->description());
  for (const std::string& what : run.source->left_out().phrases()) fmt::print("        left out: {}\n", what);
  fmt::print("run     steps {} to {}, {} x {} tokens in {} pass{} each; lr {:g} {}, warm-up {}; {} thread{}\n",
             trainer.steps_done() + 1, s.schedule.steps, s.batch * s.accumulate, s.seq_len, s.accumulate,
             s.accumulate == 1 ? "" : "es", s.schedule.peak, train::decay_name(s.schedule.decay), s.schedule.warmup,
             s.threads, s.threads == 1 ? "" : "s");
  print_memory(trainer);
  std::fflush(stdout);
}

void print_end(const train::Trainer& trainer, const TrainOptions& o, double seconds, double loss) {
  fmt::print("done    {} steps in {}, loss {:.4f}, {} loss spike{}; {}\n", trainer.steps_done(), duration_text(seconds),
             loss, trainer.spikes(), trainer.spikes() == 1 ? "" : "s", train::checkpoint_directory(o.out));
}

/// What main does with the run once it has ended early.
int report_stop(const train::Trainer& trainer, const TrainOptions& o, int signal_number) {
  fmt::print(stderr,
             "headgate train: {} at step {} of {}, {} loss spikes so far; all is saved. To go on:\n  headgate train "
             "--resume --out {}\n",
             signal_number != 0 ? "interrupted" : "stopped", trainer.steps_done(), trainer.settings().schedule.steps,
             trainer.spikes(), shell_word(o.out));
  return signal_number != 0 ? kSignalStatus + signal_number : kSuccess;
}

int report_divergence(const train::Diverged& error, const train::Trainer& trainer, const TrainOptions& o) {
  fmt::print(stderr,
             "headgate train: {}; stopped after {} loss spikes. The last good checkpoint is in {}; a lower --lr, a "
             "longer --warmup or a smaller --clip may help\n",
             error.what(), trainer.spikes(), train::checkpoint_directory(o.out));
  return kCheckFailed;
}

int run_train(const TrainOptions& o) {
  const Run run = o.resume ? resumed_run(o) : fresh_run(o);
  train::Trainer& trainer = *run.trainer;
  print_start(run);
  if (trainer.finished()) {
    fmt::print("done    all {} steps are done already; a larger --steps goes on\n", trainer.settings().schedule.steps);
    return kSuccess;
  }
  train::LoopOptions options;
  options.run = o.out;
  options.stop_at = o.run.stop_at.value_or(0);
  constexpr int kPeakWindows = 30;  // of a millisecond
  options.fma_peak_gflops = PeakMeter(active_target(), DType::f32, trainer.settings().threads).best_of(kPeakWindows);
  TrainDisplay display(trainer, o.run.log_every.value_or(10));
  const SignalWatch watch;
  const auto begin = std::chrono::steady_clock::now();
  try {
    const train::LoopEnd end = train::run_loop(trainer, display, options);
    display.clear();
    if (end != train::LoopEnd::finished) return report_stop(trainer, o, SignalWatch::received());
  } catch (const train::Diverged& error) {
    display.clear();
    return report_divergence(error, trainer, o);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  print_end(trainer, o, seconds.count(), display.loss());
  return kSuccess;
}

}  // namespace

Verb add_train(CommandLine& line) {
  auto options = std::make_shared<TrainOptions>();
  VerbOptions verb = line.add_verb(
      "train",
      "Train a small gated transformer on text\n\n"
      "A decoder as in Qwen3 (RMSNorm, RoPE, QK-norm, SwiGLU), in f32 on the CPU, with the gate of your choice. Ctrl-C "
      "saves and says how to go on.");
  declare_train_options(verb, *options);
  verb.footer(
      "Files:\n"
      "  DIR/checkpoint/    config.json, model.safetensors (Hugging Face names),\n"
      "                     optimizer.safetensors, trainer_state.json; replaced whole\n"
      "  DIR/metrics.jsonl  one object a step: loss, grad_norm, lr, tokens_per_second,\n"
      "                     mfu, and eval, spike where there was one\n"
      "\n"
      "A loss spike is a run of losses above the mean of the 100 before by 6 standard\n"
      "deviations and 0.1 nats. A loss or gradient that is not finite ends the run with\n"
      "status 1; a signal, once all is saved, with 128 and its number.\n"
      "\n"
      "Examples:\n"
      "  headgate train --data book.txt --out run --gate headwise --match-params\n"
      "  headgate train --task bigram-backcopy --data book.txt --out backcopy\n"
      "  headgate eval run --data book.txt --held-out");
  return {"train", [options] { return run_train(*options); }};
}

}  // namespace headgate::cli
