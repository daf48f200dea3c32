// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "models/train/metrics_log.hpp"
#include "models/train/run_directory.hpp"
#include "models/train/trainer.hpp"

namespace headgate::train {

struct LoopOptions {
  std::int64_t stop_at = 0;  ///< step after which the run stops, as if interrupted; 0: none
  /// Peak rate of fused multiply-adds of the run's threads together, in GFLOP/s. Model FLOPs utilisation (MFU) is
  /// relative to this rate. 0: the rate is unknown, and no MFU is reported.
  double fma_peak_gflops = 0.0;
};

class LoopObserver {
 public:
  virtual ~LoopObserver() = default;
  virtual void after_step(const Progress& progress) = 0;
  /// Called at the start of a resumed run that was interrupted before the evaluation of `step`. The resumed run first
  /// computes this missing evaluation, and passes it as `evaluation`.
  virtual void evaluated(std::int64_t step, const Evaluation& evaluation) = 0;
  /// Called after a checkpoint was saved to `directory`. This is a new directory if the previous one could not be
  /// replaced (RunDirectory::save).
  virtual void saved(std::int64_t step, const std::string& directory) = 0;
  /// Called if something could not be written; training continues. `what` is one line that names the file, the reason
  /// and what happens next.
  virtual void not_written(const std::string& what) = 0;
  /// Returns true to end the loop, which then saves the state after the last whole step. Called after each step. A
  /// process that trains alone also calls it within a step and within an evaluation.
  virtual bool interrupted() = 0;
};

enum class LoopReason { finished, stopped, interrupted };

/// Describes how a training loop ended.
struct LoopEnd {
  LoopReason reason = LoopReason::finished;
  std::int64_t saved_step = 0;  ///< step of the newest checkpoint
  std::string not_saved;        ///< reason why the last step is not saved; empty if it is saved
  std::string not_logged;       ///< reason why metrics.jsonl lacks lines; empty if it is complete
};

/// Returns whether the evaluation of the last step is missing, because the run was interrupted before it. Throws
/// io::FileError.
bool lacks_evaluation(const Trainer& trainer, const RunDirectory& run);

/// Trains until all steps are done, `stop_at` is reached or the observer interrupts.
/// - If lacks_evaluation() is true, begins with that evaluation.
/// - Saves at the start of a new run, every save_every steps and at the end.
/// - Evaluates every eval_every steps and at the last step.
/// - Drops an interrupted step. A resumed run takes this step again, bitwise identically.
/// - If a checkpoint or a metrics line cannot be written, for example on a full disk, tries again at the next one.
///
/// Throws Diverged; the last saved checkpoint then remains. Throws io::FileError if a file cannot be written before the
/// first step, or if the data changes during training.
LoopEnd run_loop(Trainer& trainer, RunDirectory& run, LoopObserver& observer, const LoopOptions& options);

/// Takes the same steps as run_loop(), in the processes of a group that do not lead it. Does not write or evaluate. If
/// any process is interrupted, the loops of all processes end.
void follow_loop(Trainer& trainer, const std::function<bool()>& interrupted, const LoopOptions& options);

}  // namespace headgate::train
