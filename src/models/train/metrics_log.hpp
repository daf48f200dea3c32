// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/io/file_error.hpp"
#include "models/train/trainer.hpp"

namespace headgate::train {

/// The figures recorded for a step.
struct Progress {
  StepReport step;
  double tokens_per_second = 0.0;
  std::optional<double> mfu;             ///< model FLOPs (models::training_flops) over FMA peak
  std::optional<Evaluation> evaluation;  ///< if one was due
};

/// Returns the record of a step as it stands in metrics.jsonl, without a newline.
std::string metrics_line(const Progress& progress);

/// Throws io::FileError if `path` holds anything but records of a run.
void check_metrics(const std::string& path);

/// Returns whether `path` has a record of `step` without an evaluation. Throws as check_metrics.
bool has_step_without_evaluation(const std::string& path, std::int64_t step);

/// Writes metrics.jsonl, one JSON object in a line for each step. A line is written as soon as it is added. If that
/// fails, on a full disk for instance, lines are kept in memory and written with the next one.
class MetricsLog {
 public:
  /// Keeps the records of steps up to `step`, removes later ones, which a run wrote after its last checkpoint, and
  /// appends. Throws io::FileError, also if check_metrics does; the file is then unchanged.
  MetricsLog(const std::string& path, std::int64_t step);
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;
  ~MetricsLog();

  void add(const Progress& progress);
  /// Adds the evaluation of the step that the log was opened at to its record, if there is one. Call it before the
  /// first add(). Throws io::FileError if the file cannot be read or cut.
  void add_evaluation(const Evaluation& evaluation);
  /// Retries writing the lines that are kept in memory.
  void flush();

  /// Returns why lines are kept in memory, as "PATH: …"; empty if all are written.
  const std::string& error() const { return error_; }

 private:
  std::string path_;
  std::int64_t step_;
  int descriptor_ = -1;
  std::string unwritten_;  ///< not yet written to the file
  std::string error_;
};

}  // namespace headgate::train
