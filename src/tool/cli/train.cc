// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "headgate/runtime.hpp"
#include "library/core/stopwatch.hpp"
#include "models/train/loop.hpp"
#include "models/train/process_group.hpp"
#include "models/train/start.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/cli/model_arguments.hpp"
#include "tool/cli/signals.hpp"
#include "tool/cli/train_display.hpp"
#include "tool/cli/train_options.hpp"
#include "tool/cli/train_report.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/console/console.hpp"
#include "tool/console/terminal_text.hpp"
#include "tool/machine/machine.hpp"

namespace headgate::cli {
namespace {

using console::say;

/// Starts or resumes the training run in this process. A group of processes trains one model together.
/// Returns nothing if another process of the group has failed; that process prints the error.
std::optional<train::Run> begin_run(const TrainOptions& o, train::ProcessGroup& group) {
  const auto note = [&group, &o](const std::string& line) {
    if (group.leads() && !console::is_quiet())
      say(o.json ? stderr : stdout, fmt::format("note: {}\n", console::terminal_text(line)));
  };
  try {
    return o.resume ? train::resume_run(o.run, note, group) : train::start_run(o.run, note, group);
  } catch (const train::OtherProcessFailed&) {
    return std::nullopt;
  }
}

/// Prints the error and ends all processes that train together. Otherwise, they would wait for this one.
/// If this process trains alone, rethrows the error instead. Must be called in a catch block.
void end_group(train::ProcessGroup& group, const std::exception& error) {
  if (group.size() == 1) throw;
  say(stderr, fmt::format("headgate train: {}\n", console::terminal_text(error.what())));
  group.end_all(kBadUsage);
}

/// Returns the line that the leading process of a training group prints when the first signal arrives.
std::string acknowledgement(const train::ProcessGroup& group) {
  return fmt::format("headgate train: stopping{}, then saving the last whole step; Ctrl-C again ends at once, unsaved",
                     group.size() == 1 ? "" : " after this step");
}

/// Runs the training loop in a process that is not the leader of its group (the processes that train together).
/// Returns the exit status.
int follow(const train::Run& run, const train::LoopOptions& options) {
  const SignalWatch watch;
  try {
    train::follow_loop(
        *run.trainer, [] { return SignalWatch::received() != 0; }, options);
  } catch (const train::Diverged&) {
    return kCheckFailed;  // the group's leader prints the error and exits with this status, too
  } catch (const train::GroupLost&) {
    return kSignalStatus + SignalWatch::received();
  } catch (const std::exception& error) {
    end_group(run.trainer->group(), error);
  }
  const int signal = SignalWatch::received();
  return signal != 0 ? kSignalStatus + signal : kSuccess;
}

int run_train_in(train::ProcessGroup& group, const TrainOptions& o) {
  const std::optional<train::Run> begun = begin_run(o, group);
  // Another process of the group has failed and prints the error. This process returns success: if it failed, too,
  // a launcher could end the other process before the error is printed.
  if (!begun) return kSuccess;
  const train::Run& run = *begun;
  train::Trainer& trainer = *run.trainer;
  train::LoopOptions options;
  options.stop_at = o.run.stop_at.value_or(0);
  if (!group.leads()) return follow(run, options);
  const TrainLines lines = o.json ? TrainLines::records : console::is_quiet() ? TrainLines::none : TrainLines::log;
  if (lines == TrainLines::log) print_start(run);
  if (trainer.finished() && !train::lacks_evaluation(trainer, *run.directory)) {
    if (!o.json) print_nothing_to_do(trainer);
    return kSuccess;
  }
  constexpr int kPeakWindows = 30;  // number of measurements of FMA peak, each of one millisecond
  bench::PeakMeter meter(active_target(), DType::f32, trainer.settings().threads);
  options.fma_peak_gflops = group.size() * meter.best_of(kPeakWindows);
  TrainDisplay display(trainer, run.directory->checkpoint(), o.log_every.value_or(10), lines);
  const SignalWatch watch(acknowledgement(group));
  const Stopwatch stopwatch;
  const std::string& out = o.run.directory;
  try {
    const train::LoopEnd end = train::run_loop(trainer, *run.directory, display, options);
    display.clear();
    if (!end.not_saved.empty() || !end.not_logged.empty()) return report_loss(run, out, end);
    if (end.reason != train::LoopReason::finished) return report_stop(trainer, out, SignalWatch::received());
  } catch (const train::Diverged& error) {
    display.clear();
    return report_divergence(error, run);
  } catch (const train::GroupLost& error) {
    display.clear();
    return report_lost_group(error, run, out);
  } catch (const std::exception& error) {
    display.clear();
    end_group(group, error);
  }
  if (!o.json) print_end(run, stopwatch.seconds(), display.loss());
  return kSuccess;
}

int run_train(const TrainOptions& o) {
  const auto& data = o.run.settings.of<&train::TrainSettings::paths>();
  check_include("--data", data, o.run.settings.of<&train::TrainSettings::include>());
  survive_lost_output();
  const std::unique_ptr<train::ProcessGroup> launched =
      train::launched_group([] { return SignalWatch::received() != 0; });
  if (launched == nullptr) return run_train_in(train::alone(), o);
  return run_train_in(*launched, o);
}

}  // namespace

Verb add_train(CommandLine& line) {
  auto options = std::make_shared<TrainOptions>();
  VerbOptions verb = line.add_verb(
      "train",
      "Train a small gated transformer on text\n\n"
      "A decoder as in Qwen3 (RMSNorm, RoPE, QK-norm, SwiGLU), in f32 on the CPU, with the gate of your choice. Ctrl-C "
      "saves the run and prints how to resume it.");
  declare_train_options(verb, *options);
  declare_json(verb, options->json, "a line for each step, as in DIR/metrics.jsonl,");
  verb.footer(
      "Files:\n"
      "  DIR/checkpoint/    config.json, model.safetensors (Hugging Face names),\n"
      "                     optimizer.safetensors, trainer_state.json; replaced whole;\n"
      "                     modeling_headgate.py where transformers need its code;\n"
      "                     (checkpoint.1/ is used if other files are in it)\n"
      "                     and with --tokenizer the tokenizer's files\n"
      "  DIR/token_ids.bin  with --tokenizer: the text as ids, encoded once\n"
      "  DIR/metrics.jsonl  one object a step: loss, loss_bits_per_byte, grad_norm, lr,\n"
      "                     tokens_per_second, mfu, and eval, spike where there was one\n"
      "\n"
      "A loss spike is a run of losses above the mean of the 100 before by 6 standard\n"
      "deviations and 0.1 nats. A loss or gradient that is not finite ends the run with\n"
      "status 1; a signal, once everything is saved, with 128 plus its number. A save\n"
      "that fails, on a full disk for instance, is reported and retried at the next\n"
      "one; a run whose last save fails ends with status 2.\n"
      "\n"
      "mpirun -n N headgate train ... divides each pass among N processes, if the tool\n"
      "was built with HEADGATE_MPI: N divides --batch, and process 0 writes and reports.\n"
      "\n"
      "Examples:\n"
      "  headgate train --data book.txt --out run --gate headwise --match-params\n"
      "  headgate train --data book.txt --tokenizer tokenizer.json --out run\n"
      "  headgate train --task bigram-backcopy --data book.txt --out backcopy\n"
      "  headgate train --init SmolLM2-135M.gguf --data book.txt --out run --lr 1e-4\n"
      "  headgate eval run --text book.txt --held-out");
  return {"train", [options] { return run_train(*options); }, /*runs_models=*/true};
}

}  // namespace headgate::cli
