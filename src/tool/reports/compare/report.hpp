// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/train/metrics_reader.hpp"

namespace headgate::compare {

struct ComparedRun {
  std::string name;  ///< its directory, as it was given
  train::RecordedRun recorded;
};

/// Reads metrics.jsonl of each directory. Throws io::FileError.
std::vector<ComparedRun> read_runs(const std::vector<std::string>& directories);

/// Figures whose lowest value says how far a run came: the losses that training lowers and that count in the end.
std::vector<const metrics::Figure*> lower_is_better();

/// What was left out of a run's records, a line each; empty where nothing was.
std::vector<std::string> notes_on(const ComparedRun& run);

/// Everything, as docs/reference/training.md describes it; of each curve at most `points` values.
nlohmann::ordered_json report_json(const std::vector<ComparedRun>& runs, std::size_t points);

/// One page that holds the report, and shows it in a browser without a network.
std::string report_page(const nlohmann::ordered_json& report);

}  // namespace headgate::compare
