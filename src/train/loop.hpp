// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "train/metrics_log.hpp"
#include "train/run_directory.hpp"
#include "train/trainer.hpp"

namespace headgate::train {

struct LoopOptions {
  std::int64_t stop_at = 0;      ///< stop when so many steps are done, as an interruption would; 0: do not
  double fma_peak_gflops = 0.0;  ///< of the run's threads; 0: not known, then there is no MFU
};

class LoopObserver {
 public:
  virtual ~LoopObserver() = default;
  virtual void after_step(const Progress& progress) = 0;
  /// `directory` is another than before where a checkpoint had to be saved beside the last one.
  virtual void saved(std::int64_t step, const std::string& directory) = 0;
  /// Something could not be written, and training goes on: one line on what, why, and what becomes of it.
  virtual void not_written(const std::string& what) = 0;
  /// Asked after each step: true ends the loop, with all saved.
  virtual bool interrupted() = 0;
};

enum class LoopReason { finished, stopped, interrupted };

/// How a loop ended.
struct LoopEnd {
  LoopReason reason = LoopReason::finished;
  std::int64_t saved_step = 0;  ///< of the newest checkpoint
  std::string not_saved;        ///< why that is not the last step taken; empty where it is
  std::string not_logged;       ///< why metrics.jsonl lacks lines; empty where it does not
};

/// Trains until all steps are done, `stop_at` or an interruption. Saves at the start of a fresh run, every save_every
/// steps and at the end; evaluates every eval_every steps and at the last. What cannot be written on the way, for want
/// of space or otherwise, is tried again at the next save or line. Throws Diverged (the checkpoint is that of the last
/// save), and io::FileError: before the first step for what cannot be written then, later for data that changed.
LoopEnd run_loop(Trainer& trainer, RunDirectory& run, LoopObserver& observer, const LoopOptions& options);

}  // namespace headgate::train
