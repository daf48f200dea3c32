// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/train/metrics_reader.hpp"

namespace headgate::compare {

struct ComparedRun {
  std::string name;  ///< path of the run's directory as given on the command line
  train::RecordedRun recorded;
};

/// Reads metrics.jsonl in each directory of a training run. Throws io::FileError.
std::vector<ComparedRun> read_runs(const std::vector<std::string>& directories);

/// Returns the figures (named metric values) that are losses. Reports show the lowest loss of a run beside the last
/// one.
std::vector<const metrics::Figure*> lower_is_better();

/// Returns notes that say which records of a run were left out, one line per note.
std::vector<std::string> notes_on(const ComparedRun& run);

/// Returns the report as JSON, as docs/reference/training.md describes it. Each curve keeps at most `points` values.
nlohmann::ordered_json report_json(const std::vector<ComparedRun>& runs, std::size_t points);

/// Returns an HTML page that contains the report and displays it without network access.
std::string report_page(const nlohmann::ordered_json& report);

}  // namespace headgate::compare
