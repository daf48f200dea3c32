// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

// Reads X-ray reports that were saved as JSON, and joins several of them into one.

namespace headgate::xray {

/// The version of the report format, under the key "version". Increase it when a key is removed or changes its meaning.
inline constexpr int kReportVersion = 1;

/// Maximum size of a report's JSON in bytes.
inline constexpr std::size_t kMostReport_bytes = std::size_t{1} << 30;

/// Maximum number of cells per side of a head's map.
inline constexpr std::size_t kMostMapCells = 1024;

/// Parses the JSON text of a report and checks every part that the page reads: its type and its length.
/// Throws io::FileError if a check fails or the report has another version. The message begins with `name`.
/// Keeps unknown keys. The keys of each object are sorted.
nlohmann::ordered_json parse_report(const std::string& name, std::string_view text);

/// Joins reports into one with the models of all reports, in order. Keeps one copy of each figure and each text.
/// If several models have the same name, gives the later ones a number: "name (2)". Requires at least one report.
nlohmann::ordered_json joined_reports(const std::vector<nlohmann::ordered_json>& reports);

/// Formats the verdict on each model of a report as a paragraph for a terminal.
std::string verdicts_text(const nlohmann::ordered_json& report);

}  // namespace headgate::xray
