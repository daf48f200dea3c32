// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/file_error.hpp"
#include "train/trainer.hpp"

namespace headgate::train {

/// What there is to tell of a step.
struct Progress {
  StepReport step;
  double tokens_per_second = 0.0;
  std::optional<double> mfu;             ///< model FLOPs (models::training_flops) over FMA peak
  std::optional<Evaluation> evaluation;  ///< where one was due
};

/// Throws io::FileError where `path` holds anything that no run wrote.
void check_metrics(const std::string& path);

/// metrics.jsonl: one JSON object a line, one line a step. Each line is in the file as soon as it is added, unless the
/// file takes no more, as on a full disk: lines then wait in memory and are written with the next one that can be.
class MetricsLog {
 public:
  /// Keeps the records of steps up to `step`, drops what a run wrote after its last checkpoint, and appends from there.
  /// Throws io::FileError, also as check_metrics does; the file is then left as it is.
  MetricsLog(const std::string& path, std::int64_t step);
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;
  ~MetricsLog();

  void add(const Progress& progress);
  /// Tries once more to write what waits.
  void flush();

  /// Why lines wait, as "PATH: …"; empty when all are in the file.
  const std::string& trouble() const { return trouble_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  std::string waiting_;  ///< from the first byte on that is not in the file
  std::string trouble_;
};

}  // namespace headgate::train
