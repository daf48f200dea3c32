// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/evaluate/figure.hpp"

// Builds the HTML pages of reports. Each page is one file that contains a report as JSON, displays it and needs no
// network. The shared colours, charts, theme and table of figures are in page.css, draw.js and report.js.

namespace headgate::page {

/// The parts that differ between pages: the HTML of the body, and the style and script appended to the shared ones.
struct PageParts {
  const char* body;
  const char* css;
  const char* js;
};

/// Returns the HTML page of a report. `report` has the members "headgate", the version, and "figures", a list of
/// figure_json().
std::string page_of(const PageParts& parts, const nlohmann::ordered_json& report);

/// Returns the key of a figure, its display name, the sentence that explains it, and whether it is a share.
nlohmann::ordered_json figure_json(const metrics::Figure& figure);

/// Rounds a number to 5 significant digits, as many as a page shows. Returns null for numbers that are not finite.
nlohmann::ordered_json rounded(double value);

/// Formats the report as a JSON file. Replaces bytes that are not UTF-8.
std::string json_text(const nlohmann::ordered_json& report);

}  // namespace headgate::page
