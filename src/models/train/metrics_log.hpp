// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/io/file_error.hpp"
#include "models/train/trainer.hpp"

namespace headgate::train {

/// The measured values that metrics.jsonl records for a training step.
struct Progress {
  StepReport step;
  double tokens_per_second = 0.0;
  std::optional<double> mfu;  ///< model FLOPs utilisation: models::training_flops per second, divided by the FMA peak
  std::optional<Evaluation> evaluation;  ///< evaluation after the step; empty if none was due
};

/// Returns the record of a step as a line of metrics.jsonl, without the newline.
std::string metrics_line(const Progress& progress);

/// Throws io::FileError if `path` holds anything but records of a run.
void check_metrics(const std::string& path);

/// Returns whether `path` has a record of `step`, and this record has no evaluation. Throws the errors of
/// check_metrics().
bool has_step_without_evaluation(const std::string& path, std::int64_t step);

/// Writes metrics.jsonl, which has one JSON object per line and step. Each line is in the file at once. If writing
/// fails, for example on a full disk, keeps the lines in memory and writes them with the next line.
class MetricsLog {
 public:
  /// Opens the file to append records after `step`. Removes records of later steps, which the run wrote after its last
  /// checkpoint. Throws the errors of check_metrics(). Throws io::FileError if the file cannot be written. In both
  /// cases the file is unchanged.
  MetricsLog(const std::string& path, std::int64_t step);
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;
  ~MetricsLog();

  void add(const Progress& progress);
  /// Adds an evaluation to the log's last record. Does nothing if this record belongs to an earlier step than the one
  /// after which the log was opened. Must be called before the first add(). Throws io::FileError if the file cannot be
  /// read or truncated.
  void add_evaluation(const Evaluation& evaluation);
  /// Retries writing the lines that are kept in memory.
  void flush();

  /// Returns the error of the last write, "PATH: …"; empty if all lines are written.
  const std::string& error() const { return error_; }

 private:
  std::string path_;
  std::int64_t step_;
  int descriptor_ = -1;
  std::string unwritten_;  ///< lines not yet written to the file
  std::string error_;
};

}  // namespace headgate::train
