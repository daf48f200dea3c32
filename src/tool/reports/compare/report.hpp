// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/train/metrics_reader.hpp"

namespace headgate::compare {

struct ComparedRun {
  std::string name;  ///< path of the run's directory, as the user gave it
  train::RecordedRun recorded;
};

/// Reads metrics.jsonl of each directory. Throws io::FileError.
std::vector<ComparedRun> read_runs(const std::vector<std::string>& directories);

/// Returns the figures for which reports also show the lowest value: the losses that training lowers.
std::vector<const metrics::Figure*> lower_is_better();

/// Returns notes on the records of a run that were left out, one line each.
std::vector<std::string> notes_on(const ComparedRun& run);

/// Returns the report in the format of docs/reference/training.md, with at most `points` values per curve.
nlohmann::ordered_json report_json(const std::vector<ComparedRun>& runs, std::size_t points);

/// Returns an HTML page that contains the report and displays it without a network.
std::string report_page(const nlohmann::ordered_json& report);

}  // namespace headgate::compare
