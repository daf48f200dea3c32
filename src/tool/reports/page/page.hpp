// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/evaluate/figure.hpp"

// What the pages of verbs share: one HTML file that holds a report as JSON, shows it and needs no network. Colours,
// charts, the theme and the table of figures are in page.css, draw.js and report.js.

namespace headgate::page {

/// What a page has of its own: the body's HTML, and style and script that come behind the shared ones.
struct PageParts {
  const char* body;
  const char* css;
  const char* js;
};

/// `report` has "headgate", the version, and "figures", a list of figure_json.
std::string page_of(const PageParts& parts, const nlohmann::ordered_json& report);

/// A figure's key, its name for people, what it says, and whether it is a share.
nlohmann::ordered_json figure_json(const metrics::Figure& figure);

/// With so many digits as a page can show; null for what is not finite.
nlohmann::ordered_json rounded(double value);

/// The report as a file of its own. Bytes of it that are no UTF-8 are replaced.
std::string json_text(const nlohmann::ordered_json& report);

}  // namespace headgate::page
