// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/train/metrics_reader.hpp"

namespace headgate::compare {

struct ComparedRun {
  std::string name;  ///< the directory, as it was given
  train::RecordedRun recorded;
};

/// Reads metrics.jsonl of each directory. Throws io::FileError.
std::vector<ComparedRun> read_runs(const std::vector<std::string>& directories);

/// Returns the figures whose lowest value says how far a run came: the losses that training lowers.
std::vector<const metrics::Figure*> lower_is_better();

/// Returns what was left out of a run's records, one line each; empty if nothing was.
std::vector<std::string> notes_on(const ComparedRun& run);

/// Returns the whole report, as docs/reference/training.md describes it; at most `points` values of each curve.
nlohmann::ordered_json report_json(const std::vector<ComparedRun>& runs, std::size_t points);

/// Returns one page that holds the report and shows it in a browser without a network.
std::string report_page(const nlohmann::ordered_json& report);

}  // namespace headgate::compare
