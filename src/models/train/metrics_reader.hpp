// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/evaluate/figure.hpp"

namespace headgate::train {

/// A figure over the steps of a run.
struct Curve {
  const metrics::Figure* figure;
  std::vector<std::int64_t> steps;  ///< increasing
  std::vector<double> values;       ///< NaN where the record has null
};

/// What metrics.jsonl says of a run.
struct RecordedRun {
  std::vector<std::int64_t> steps;     ///< of its records, increasing, at least one
  std::optional<std::int64_t> tokens;  ///< seen until the last of them
  std::vector<std::int64_t> spikes;    ///< steps at which a loss spike begins
  std::vector<Curve> curves;           ///< those with a number, in the order of recorded_figures(), at least one
  std::int64_t replaced = 0;           ///< records that later ones of the same or an earlier step took the place of
  bool cut_off = false;                ///< the last line is not whole, and left out

  /// Null where the run has none.
  const Curve* find(const metrics::Figure& figure) const;
};

/// All that a record may have: the step's loss, the figures of an evaluation, the other figures of a step.
std::vector<const metrics::Figure*> recorded_figures();

/// Reads metrics.jsonl of a run, which may still be written. Where steps go back, the later records count. Throws
/// io::FileError with the line and value that is wrong.
RecordedRun read_metrics(const std::string& path);

/// Reads the metrics of the run in `directory`, resolved by io::given_path. Throws as read_metrics, and io::FileError
/// if it is not a run.
RecordedRun read_run(const std::string& directory);

}  // namespace headgate::train
