// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/train/loop.hpp"
#include "tool/console/progress.hpp"

namespace headgate::cli {

/// Formats the metric values of an evaluation during training as one line.
std::string evaluation_line(const train::Evaluation& evaluation);

/// Formats a loss, for instance "loss 1.3863 (2.0000 bits a byte)".
std::string loss_text(double loss, std::optional<double> bits_per_byte);

/// Kind of lines that a training run prints on stdout.
enum class TrainLines {
  log,      ///< log lines; without a progress bar, also the loss and speed of every N-th step
  records,  ///< one JSON line per step, as in metrics.jsonl
  none,
};

/// Shows the progress of a training run: a progress bar if stderr is a terminal, and the lines that TrainLines selects.
class TrainDisplay : public train::LoopObserver {
 public:
  /// `checkpoint`: path at which checkpoints are expected. A checkpoint saved elsewhere is reported.
  TrainDisplay(const train::Trainer& trainer, std::string checkpoint, std::int64_t log_every,
               TrainLines lines = TrainLines::log);

  void after_step(const train::Progress& progress) override;
  void evaluated(std::int64_t step, const train::Evaluation& evaluation) override;
  void saved(std::int64_t step, const std::string& directory) override;
  void not_written(const std::string& what) override;
  bool interrupted() override;

  /// Removes the progress bar.
  void clear() { bar_.clear(); }
  /// Returns the loss of the last step as loss_text() formats it, or an empty string if there was no step.
  std::string loss() const { return loss_ ? loss_text(*loss_, bits_per_byte_) : ""; }

 private:
  console::StatusLine status(const train::Progress& progress) const;
  std::string log_line(const train::Progress& progress) const;
  void print_log(const std::string& line) const;

  console::ProgressBar bar_{console::Appearance::at_once};
  TrainLines lines_;
  std::string checkpoint_;
  std::int64_t steps_;
  std::int64_t log_every_;
  std::optional<double> loss_;           ///< loss of the last step
  std::optional<double> bits_per_byte_;  ///< bits per byte of the last step
  double seconds_per_step_ = 0.0;        ///< running mean of the seconds per step
};

}  // namespace headgate::cli
