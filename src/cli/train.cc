// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <omp.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/machine.hpp"
#include "cli/memory.hpp"
#include "cli/signals.hpp"
#include "cli/train_display.hpp"
#include "cli/train_options.hpp"
#include "cli/verbs.hpp"
#include "console/console.hpp"
#include "console/shell_word.hpp"
#include "console/units.hpp"
#include "core/check.hpp"
#include "headgate/runtime.hpp"
#include "io/file_error.hpp"
#include "layers/gate_variant.hpp"
#include "train/checkpoint.hpp"
#include "train/loop.hpp"
#include "train/run_directory.hpp"
#include "train/trainer.hpp"

namespace headgate::cli {
namespace {

using console::bytes_text;
using console::duration_text;
using console::say;
using console::shell_word;
using train::TrainSettings;

/// A run ready to go: the trainer reads from the source, and the directory is nobody else's.
struct Run {
  std::unique_ptr<train::RunDirectory> directory;
  std::unique_ptr<train::SequenceSource> source;
  std::unique_ptr<train::Trainer> trainer;
};

/// What `work` has against the run's directory, said of --out.
template <class Work>
auto checked_out(const TrainOptions& o, const Work& work) {
  try {
    return work();
  } catch (const io::FileError& error) {
    throw UsageError(fmt::format("--out {} cannot be used: {}", o.out, error.what()));
  }
}

std::unique_ptr<train::RunDirectory> open_directory(const TrainOptions& o, train::RunStart start) {
  auto directory = checked_out(o, [&] { return std::make_unique<train::RunDirectory>(o.out, start); });
  if (!directory->lock_unavailable().empty()) {
    say(stdout, fmt::format("note: {} cannot be locked ({}): nothing keeps a second trainer out of it\n", o.out,
                            directory->lock_unavailable()));
  }
  return directory;
}

Run fresh_run(const TrainOptions& o) {
  if (o.run.data.empty()) throw UsageError("--data is required");
  if (!train::checkpoints_of(o.out).empty()) {
    throw UsageError(fmt::format("--out {} holds a run: --resume goes on with it, another --out starts anew", o.out));
  }
  checked_out(o, [&o] { train::require_no_run(o.out); });
  const train::Task task = o.run.task.empty() ? train::Task::text : parse_word<train::Task>("task", o.run.task);
  const models::DecoderConfig config = make_config(o.model, task);
  const TrainSettings settings = make_settings(o.run, config.seq_len);
  Run run;
  run.source = train::open_data(train::data_of(settings, o.out));
  omp_set_num_threads(settings.threads);
  run.trainer = with_memory(train::training_memory(config, settings, *run.source), 0,
                            [&] { return std::make_unique<train::Trainer>(config, settings, *run.source); });
  run.directory = open_directory(o, train::RunStart::fresh);
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
  const std::vector<std::string> checkpoints = train::checkpoints_of(o.out);
  if (checkpoints.empty())
    throw UsageError(fmt::format("--resume: {} holds no checkpoint", train::newest_checkpoint(o.out)));
  Run run;
  run.directory = open_directory(o, train::RunStart::resumed);
  const std::string& directory = run.directory->checkpoint();
  train::Checkpoint checkpoint = train::load_checkpoint(directory, train::CheckpointParts::all);
  train::TrainerState state = state_of(checkpoint, directory);
  const int threads_before = state.settings.threads;
  state.settings = resumed_settings(o.run, state.settings);
  if (o.model.any() && make_config(o.model, state.settings.task) != checkpoint.config) {
    throw UsageError(
        fmt::format("the options make another model than the one in {}: leave them out on --resume", directory));
  }
  if (checkpoints.size() > 1) {
    say(stdout, fmt::format("note: {} holds {} checkpoints; the newest is {}, of step {}\n", o.out, checkpoints.size(),
                            directory, state.step));
  }
  if (state.settings.threads != threads_before) {
    say(stdout, fmt::format("note: the run had {} threads; with {} the last bits of its numbers change\n",
                            threads_before, state.settings.threads));
  }
  run.source = train::open_data(train::data_of(state.settings, o.out));
  omp_set_num_threads(state.settings.threads);
  const std::uint64_t read = 3 * checkpoint.parameters.size() * sizeof(float);  // they and the moments: in the plan too
  run.trainer = with_memory(train::training_memory(checkpoint.config, state.settings, *run.source), read, [&] {
    return std::make_unique<train::Trainer>(std::move(checkpoint), state, *run.source);
  });
  return run;
}

std::string model_text(const models::DecoderConfig& c) {
  return fmt::format(
      "model   {} layers, dim {}, {} heads on {} kv heads of {}, ffn {}, vocab {}: {} parameters\n"
      "gate    {}{}\n",
      c.layers, c.dim, c.heads, c.kv_heads, c.head_dim, c.ffn, c.vocab, models::parameter_count(c),
      layers::gate_name(c.gate), c.norm_placement == models::NormPlacement::sandwich ? ", sandwich norm" : "");
}

std::string data_text(const train::SequenceSource& source, train::Task task) {
  std::string text = fmt::format("data    {}, {}\n", word_of(task), source.description());
  for (const std::string& what : source.left_out().phrases()) text += fmt::format("        left out: {}\n", what);
  return text;
}

std::string memory_text(const train::Trainer& trainer) {
  double total = 0.0;
  std::string items;
  for (const models::MemoryItem& item : trainer.memory_plan()) {
    total += static_cast<double>(item.bytes);
    items += fmt::format("        {:>10}  {}\n", bytes_text(static_cast<double>(item.bytes)), item.name);
  }
  return fmt::format("memory  {} for every step, taken now:\n{}", bytes_text(total), items);
}

void print_start(const Run& run) {
  const train::Trainer& trainer = *run.trainer;
  const TrainSettings& s = trainer.settings();
  say(stdout,
      model_text(trainer.config()) + data_text(*run.source, s.task) +
          fmt::format("run     steps {} to {}, {} x {} tokens in {} pass{} each; lr {:g} {}, warm-up {}; {} thread{}\n",
                      trainer.steps_done() + 1, s.schedule.steps, s.batch * s.accumulate, s.seq_len, s.accumulate,
                      s.accumulate == 1 ? "" : "es", s.schedule.peak, word_of(s.schedule.decay), s.schedule.warmup,
                      s.threads, s.threads == 1 ? "" : "s") +
          memory_text(trainer));
}

void print_end(const Run& run, double seconds, double loss) {
  const std::int64_t spikes = run.trainer->spikes();
  say(stdout, fmt::format("done    {} steps in {}, loss {:.4f}, {} loss spike{}; {}\n", run.trainer->steps_done(),
                          duration_text(seconds), loss, spikes, spikes == 1 ? "" : "s", run.directory->checkpoint()));
}

std::string resume_command(const TrainOptions& o) {
  return fmt::format("headgate train --resume --out {}", shell_word(o.out));
}

/// What main does with the run once it has ended early.
int report_stop(const train::Trainer& trainer, const TrainOptions& o, int signal_number) {
  say(stderr, fmt::format("headgate train: {} at step {} of {}, {} loss spikes so far; all is saved. To go on:\n  {}\n",
                          signal_number != 0 ? "interrupted" : "stopped", trainer.steps_done(),
                          trainer.settings().schedule.steps, trainer.spikes(), resume_command(o)));
  return signal_number != 0 ? kSignalStatus + signal_number : kSuccess;
}

int report_divergence(const train::Diverged& error, const Run& run) {
  say(stderr,
      fmt::format("headgate train: {}; stopped after {} loss spikes. The last good checkpoint is in {}; a lower "
                  "--lr, a longer --warmup or a smaller --clip may help\n",
                  error.what(), run.trainer->spikes(), run.directory->checkpoint()));
  return kCheckFailed;
}

/// A run that could not write all that it had to say by its end.
int report_loss(const Run& run, const TrainOptions& o, const train::LoopEnd& end) {
  const std::int64_t done = run.trainer->steps_done();
  const std::string& checkpoint = run.directory->checkpoint();
  if (end.not_saved.empty()) {
    say(stderr,
        fmt::format("headgate train: {}; it lacks lines up to step {}. The checkpoint of step {} is whole, in {}\n",
                    end.not_logged, done, end.saved_step, checkpoint));
  } else {
    say(stderr, fmt::format("headgate train: ended at step {} of {}, but steps {} to {} are lost: {}. {} has step {}. "
                            "To take them again:\n  {}\n",
                            done, run.trainer->settings().schedule.steps, end.saved_step + 1, done, end.not_saved,
                            checkpoint, end.saved_step, resume_command(o)));
  }
  return kBadUsage;
}

int run_train(const TrainOptions& o) {
  survive_lost_output();
  const Run run = o.resume ? resumed_run(o) : fresh_run(o);
  train::Trainer& trainer = *run.trainer;
  print_start(run);
  if (trainer.finished()) {
    say(stdout, fmt::format("done    all {} steps are done already; a larger --steps goes on\n",
                            trainer.settings().schedule.steps));
    return kSuccess;
  }
  train::LoopOptions options;
  options.stop_at = o.run.stop_at.value_or(0);
  constexpr int kPeakWindows = 30;  // of a millisecond
  options.fma_peak_gflops =
      bench::PeakMeter(active_target(), DType::f32, trainer.settings().threads).best_of(kPeakWindows);
  TrainDisplay display(trainer, run.directory->checkpoint(), o.run.log_every.value_or(10));
  const SignalWatch watch;
  const auto begin = std::chrono::steady_clock::now();
  try {
    const train::LoopEnd end = train::run_loop(trainer, *run.directory, display, options);
    display.clear();
    if (!end.not_saved.empty() || !end.not_logged.empty()) return report_loss(run, o, end);
    if (end.reason != train::LoopReason::finished) return report_stop(trainer, o, SignalWatch::received());
  } catch (const train::Diverged& error) {
    display.clear();
    return report_divergence(error, run);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  print_end(run, seconds.count(), display.loss());
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
      "                     optimizer.safetensors, trainer_state.json; replaced whole.\n"
      "                     Where other files appear in it, checkpoint.1/ beside it\n"
      "  DIR/metrics.jsonl  one object a step: loss, grad_norm, lr, tokens_per_second,\n"
      "                     mfu, and eval, spike where there was one\n"
      "\n"
      "A loss spike is a run of losses above the mean of the 100 before by 6 standard\n"
      "deviations and 0.1 nats. A loss or gradient that is not finite ends the run with\n"
      "status 1; a signal, once all is saved, with 128 and its number. A save that fails,\n"
      "as on a full disk, is told and tried again at the next one; a run whose last save\n"
      "fails ends with status 2.\n"
      "\n"
      "Examples:\n"
      "  headgate train --data book.txt --out run --gate headwise --match-params\n"
      "  headgate train --task bigram-backcopy --data book.txt --out backcopy\n"
      "  headgate eval run --data book.txt --held-out");
  return {"train", [options] { return run_train(*options); }};
}

}  // namespace headgate::cli
