// SPDX-License-Identifier: Apache-2.0
#include "models/train/loop.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "models/io/file_error.hpp"

namespace headgate::train {

namespace {

bool due(std::int64_t step, std::int64_t every) { return every > 0 && step % every == 0; }

bool evaluation_due(const Trainer& trainer) {
  const TrainSettings& settings = trainer.settings();
  return settings.eval_tokens > 0 && settings.eval_every > 0 &&
         (due(trainer.steps_done(), settings.eval_every) || trainer.finished());
}

/// Takes the next training step. Returns the trainer's report of the step, with rates such as tokens per second. If
/// Cancelled is thrown, the step has not been taken.
Progress advance(Trainer& trainer, const LoopOptions& options) {
  Progress progress;
  progress.step = trainer.step();
  const double seconds = progress.step.seconds;
  progress.tokens_per_second = static_cast<double>(trainer.settings().tokens_per_step()) / seconds;
  if (options.fma_peak_gflops > 0.0) {
    progress.mfu = trainer.flops_per_step() / (seconds * 1e9 * options.fma_peak_gflops);
  }
  return progress;
}

/// Returns the evaluation after the last step, or nothing if the evaluation was cancelled.
std::optional<Evaluation> evaluated(Trainer& trainer) {
  try {
    return trainer.evaluate();
  } catch (const Cancelled&) {
    return std::nullopt;
  }
}

/// Lets LoopObserver::interrupted() cancel the trainer's forward and backward passes while the object exists.
class Interruptible {
 public:
  Interruptible(Trainer& trainer, LoopObserver& observer) : trainer_(trainer) {
    // Processes of a group may not cancel a step, because all of them must end after the same step.
    if (trainer.group().size() == 1) trainer.cancel_when([&observer] { return observer.interrupted(); });
  }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
  ~Interruptible() { trainer_.cancel_when({}); }

 private:
  Trainer& trainer_;
};

/// Returns the reason to end the loop now, or nothing if the loop continues.
std::optional<LoopReason> reason_to_end(const Trainer& trainer, bool own_interruption, const LoopOptions& options) {
  const bool interrupted = trainer.group().any(own_interruption);
  if (trainer.finished()) return LoopReason::finished;
  if (interrupted) return LoopReason::interrupted;
  if (trainer.steps_done() == options.stop_at) return LoopReason::stopped;
  return std::nullopt;
}

/// Saves the checkpoints of a run and logs its metrics. A write that fails does not end the run.
class RunWriter {
 public:
  RunWriter(const Trainer& trainer, RunDirectory& run, LoopObserver& observer)
      : trainer_(trainer),
        run_(run),
        observer_(observer),
        log_(metrics_path(run.path()), trainer.steps_done()),
        saved_step_(trainer.steps_done()) {}

  void save_start() {
    run_.save(trainer_);
    observer_.saved(saved_step_, run_.checkpoint());
  }

  /// Saves a checkpoint if the last step is not saved yet. Returns an empty string, or the reason why saving failed.
  /// After a failure, the previous checkpoint remains.
  std::string save() {
    if (saved_step_ == trainer_.steps_done()) return "";
    try {
      run_.save(trainer_);
    } catch (const io::WriteError& error) {
      return error.what();
    }
    saved_step_ = trainer_.steps_done();
    observer_.saved(saved_step_, run_.checkpoint());
    return "";
  }

  void save_or_report() {
    const std::string reason = save();
    if (reason.empty()) return;
    observer_.not_written(fmt::format("step {} is not saved: {}; {} keeps step {}, and the next save tries again",
                                      trainer_.steps_done(), reason, run_.checkpoint(), saved_step_));
  }

  void log(const Progress& progress) {
    const bool behind = !log_.error().empty();
    log_.add(progress);
    if (behind || log_.error().empty()) return;
    observer_.not_written(fmt::format("{}; its lines from step {} on are kept in memory until it takes them",
                                      log_.error(), progress.step.step));
  }

  void add_evaluation(const Evaluation& evaluation) {
    log_.add_evaluation(evaluation);
    observer_.evaluated(saved_step_, evaluation);
  }

  LoopEnd end(LoopReason reason) {
    std::string not_saved = save();
    log_.flush();
    return {reason, saved_step_, std::move(not_saved), log_.error()};
  }

 private:
  const Trainer& trainer_;
  RunDirectory& run_;
  LoopObserver& observer_;
  MetricsLog log_;
  std::int64_t saved_step_;
};

}  // namespace

bool lacks_evaluation(const Trainer& trainer, const RunDirectory& run) {
  return evaluation_due(trainer) && has_step_without_evaluation(metrics_path(run.path()), trainer.steps_done());
}

LoopEnd run_loop(Trainer& trainer, RunDirectory& run, LoopObserver& observer, const LoopOptions& options) {
  RunWriter writer(trainer, run, observer);
  const Interruptible interruptible(trainer, observer);
  // Saves before the first step of a new run. An unusable directory is thus reported early, and a run that diverges
  // early has a checkpoint.
  if (checkpoints_of(run.path()).empty()) writer.save_start();
  try {
    if (lacks_evaluation(trainer, run)) writer.add_evaluation(trainer.evaluate());
    while (!trainer.finished()) {
      Progress progress = advance(trainer, options);
      const bool due_here = evaluation_due(trainer);
      if (due_here) progress.evaluation = evaluated(trainer);
      writer.log(progress);
      observer.after_step(progress);
      if (due_here && !progress.evaluation) return writer.end(LoopReason::interrupted);
      const std::optional<LoopReason> reason = reason_to_end(trainer, observer.interrupted(), options);
      if (reason) return writer.end(*reason);
      if (due(trainer.steps_done(), trainer.settings().save_every)) writer.save_or_report();
    }
  } catch (const Cancelled&) {
    return writer.end(LoopReason::interrupted);
  }
  return writer.end(LoopReason::finished);
}

void follow_loop(Trainer& trainer, const std::function<bool()>& interrupted, const LoopOptions& options) {
  bool ends = false;
  while (!ends && !trainer.finished()) {
    trainer.step();
    ends = reason_to_end(trainer, interrupted(), options).has_value();
    // Checks for divergence at the same steps as the leading process, which checks when it saves. All processes thus
    // throw Diverged together.
    if (ends || due(trainer.steps_done(), trainer.settings().save_every)) trainer.require_finite();
  }
}

}  // namespace headgate::train
