// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

// Reads X-ray reports that were saved as JSON, and joins them for one page.

namespace headgate::xray {

/// The value of "version" in a report's JSON. It grows when a key is removed or changes its meaning.
inline constexpr int kReportVersion = 1;

/// Largest size of a report's JSON.
inline constexpr std::size_t kMostReport_bytes = std::size_t{1} << 30;

/// Largest number of cells per side of a head's map.
inline constexpr std::size_t kMostMapCells = 1024;

/// Parses the JSON text of a report. Throws io::FileError, with a message that begins with `name`, unless the text is a
/// report of this version with all parts that the page reads, each of its type and length. Other keys are kept. Each
/// object's keys are sorted.
nlohmann::ordered_json parse_report(const std::string& name, std::string_view text);

/// Returns a report with the models of all reports, in order. It has each figure and each text once. A model with a
/// name that is taken gets a number: "name (2)". Requires at least one report.
nlohmann::ordered_json joined_reports(const std::vector<nlohmann::ordered_json>& reports);

/// Returns the verdict on each model of a report as a paragraph for a terminal.
std::string verdicts_text(const nlohmann::ordered_json& report);

}  // namespace headgate::xray
