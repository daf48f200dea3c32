// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/trainer.hpp"

// A run lives in a directory: checkpoint/ (see checkpoint.hpp) and metrics.jsonl.

namespace headgate::train {

std::string checkpoint_directory(const std::string& run);
std::string metrics_path(const std::string& run);

struct LoopOptions {
  std::string run;               ///< directory; made if missing (its parent is not)
  std::int64_t stop_at = 0;      ///< stop when so many steps are done, as an interruption would; 0: do not
  double fma_peak_gflops = 0.0;  ///< of the run's threads; 0: not known, then there is no MFU
};

/// What is told after each step.
struct Progress {
  StepReport step;
  double tokens_per_second = 0.0;
  std::optional<double> mfu;             ///< model FLOPs (models::training_flops) over FMA peak
  std::optional<Evaluation> evaluation;  ///< where one was due
};

class LoopObserver {
 public:
  virtual ~LoopObserver() = default;
  virtual void after_step(const Progress& progress) = 0;
  virtual void saved(std::int64_t step) = 0;
  /// Asked after each step: true ends the loop, with all saved.
  virtual bool interrupted() = 0;
};

enum class LoopEnd { finished, stopped, interrupted };

/// Trains until all steps are done, `stop_at` or an interruption. Saves at the start of a fresh run, every save_every
/// steps and at the end; evaluates every eval_every steps and at the last. Throws Diverged (the checkpoint is that of
/// the last save) and io::FileError.
LoopEnd run_loop(Trainer& trainer, LoopObserver& observer, const LoopOptions& options);

}  // namespace headgate::train
