// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/evaluate/figure.hpp"

// Builds the HTML pages of reports. A page is a single file: it contains the report as JSON and needs no network.
// All pages share the styles and scripts in page.css, draw.js and report.js.

namespace headgate::page {

/// Parts that one kind of page adds to the shared template: the HTML body, a style sheet and a script.
struct PageParts {
  const char* body;
  const char* css;
  const char* js;
};

/// Returns the HTML page of a report.
/// `report` needs two members: "headgate", the version of the program, and "figures", a list of figure_json() objects.
std::string page_of(const PageParts& parts, const nlohmann::ordered_json& report);

/// Describes a figure (a named metric value) as JSON: its key, its display name, a sentence that explains it, and
/// whether it is a share, which always lies in [0, 1].
nlohmann::ordered_json figure_json(const metrics::Figure& figure);

/// Rounds a number to 5 significant digits, which is what a page shows. Returns null if the number is not finite.
nlohmann::ordered_json rounded(double value);

}  // namespace headgate::page
