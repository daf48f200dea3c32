// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/evaluate/figure.hpp"

namespace headgate::train {

/// The values of a figure, which is one of a metric's numbers, over the steps of a run.
struct Curve {
  const metrics::Figure* figure;
  std::vector<std::int64_t> steps;  ///< increasing
  std::vector<double> values;       ///< one value per entry of `steps`; NaN where the record has null
};

/// Holds the contents of a run's metrics.jsonl.
struct RecordedRun {
  std::vector<std::int64_t> steps;     ///< steps of the records, increasing, at least one
  std::optional<std::int64_t> tokens;  ///< tokens seen up to the last step
  std::vector<std::int64_t> spikes;    ///< steps at which a loss spike begins
  std::vector<Curve> curves;  ///< curves with at least one number, in the order of recorded_figures(); never empty
  std::int64_t replaced = 0;  ///< number of records that were replaced because a resumed run repeated their steps
  bool cut_off = false;       ///< whether the last line was incomplete and therefore skipped

  /// Returns the curve of a figure, or null if the run has no value of this figure.
  const Curve* find(const metrics::Figure& figure) const;
};

/// Returns every figure (number of a metric) that a record may have, in this order:
/// - the loss of the step
/// - the figures of an evaluation
/// - the other figures of the step
std::vector<const metrics::Figure*> recorded_figures();

/// Reads metrics.jsonl of a run, which may still be running. If a resumed run has repeated steps, later records replace
/// earlier ones. Throws io::FileError that names the bad line and value.
RecordedRun read_metrics(const std::string& path);

/// Reads the metrics of the run in `directory`, resolved by io::given_path(). Throws the errors of read_metrics(), and
/// io::FileError if the directory is not a run.
RecordedRun read_run(const std::string& directory);

}  // namespace headgate::train
