// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "cli/progress.hpp"
#include "train/loop.hpp"

namespace headgate::cli {

/// "1.2 MB": decimal units.
std::string bytes_text(double bytes);
/// "2:03:20", "3:20".
std::string duration_text(double seconds);
/// One line: loss, first-token attention beside the uniform one, sinks, activation, gate.
std::string evaluation_line(const train::Evaluation& evaluation);

/// Shows a run as it goes: a progress bar on a terminal, lines elsewhere.
class TrainDisplay : public train::LoopObserver {
 public:
  TrainDisplay(const train::Trainer& trainer, std::int64_t log_every);

  void after_step(const train::Progress& progress) override;
  void saved(std::int64_t step) override;
  bool interrupted() override;

  /// Takes the bar away.
  void clear() { bar_.clear(); }
  double loss() const { return loss_; }

 private:
  std::string status(const train::Progress& progress) const;

  ProgressBar bar_;
  std::int64_t steps_;
  std::int64_t log_every_;
  double loss_ = 0.0;              ///< of the last step
  double seconds_per_step_ = 0.0;  ///< running mean
};

/// From here on, until the end of its life, SIGINT, SIGTERM and SIGHUP are noted instead of ending the process; the
/// second one ends it.
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
