// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/evaluate/figure.hpp"

namespace headgate::train {

/// The values of a figure over the steps of a run.
struct Curve {
  const metrics::Figure* figure;
  std::vector<std::int64_t> steps;  ///< increasing
  std::vector<double> values;       ///< NaN where the record has null
};

/// Holds what metrics.jsonl says of a run.
struct RecordedRun {
  std::vector<std::int64_t> steps;     ///< steps of its records, increasing, at least one
  std::optional<std::int64_t> tokens;  ///< tokens seen up to the last step
  std::vector<std::int64_t> spikes;    ///< steps at which a loss spike begins
  std::vector<Curve> curves;           ///< curves with a number, in the order of recorded_figures(), at least one
  std::int64_t replaced = 0;           ///< records replaced by later ones of the same or an earlier step
  bool cut_off = false;                ///< the last line is incomplete and left out

  /// Returns null if the run has no such figure.
  const Curve* find(const metrics::Figure& figure) const;
};

/// Returns every figure that a record may have: the step's loss, the figures of an evaluation, the other figures of a
/// step.
std::vector<const metrics::Figure*> recorded_figures();

/// Reads metrics.jsonl of a run, which may still be running. Where steps go back, later records replace earlier ones.
/// Throws io::FileError, naming the bad line and value.
RecordedRun read_metrics(const std::string& path);

/// Reads the metrics of the run in `directory`, resolved by io::given_path. Throws as read_metrics, and io::FileError
/// if it is not a run.
RecordedRun read_run(const std::string& directory);

}  // namespace headgate::train
