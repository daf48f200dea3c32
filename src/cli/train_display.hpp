// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "cli/progress.hpp"
#include "train/loop.hpp"

namespace headgate::cli {

/// "2:03:20", "3:20".
std::string duration_text(double seconds);
/// One line: loss, first-token attention beside the uniform one, sinks, activation, gate.
std::string evaluation_line(const train::Evaluation& evaluation);

/// Shows a run as it goes: a progress bar on a terminal, lines elsewhere.
class TrainDisplay : public train::LoopObserver {
 public:
  /// `checkpoint`: where the run's newest one lies, so far.
  TrainDisplay(const train::Trainer& trainer, std::string checkpoint, std::int64_t log_every);

  void after_step(const train::Progress& progress) override;
  void saved(std::int64_t step, const std::string& directory) override;
  void not_written(const std::string& what) override;
  bool interrupted() override;

  /// Takes the bar away.
  void clear() { bar_.clear(); }
  double loss() const { return loss_; }

 private:
  std::string status(const train::Progress& progress) const;

  ProgressBar bar_;
  std::string checkpoint_;
  std::int64_t steps_;
  std::int64_t log_every_;
  double loss_ = 0.0;              ///< of the last step
  double seconds_per_step_ = 0.0;  ///< running mean
};

/// From here on, until the end of its life, SIGINT, SIGTERM and SIGHUP are noted instead of ending the process. Another
/// SIGINT or SIGTERM a second later ends it; within the second it is taken for a copy of the first, as `timeout` and a
/// shell whose terminal closes send to the process and to its group.
class SignalWatch {
 public:
  SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  ~SignalWatch();

  /// The signal that came, 0 if none did.
  static int received();
};

}  // namespace headgate::cli
