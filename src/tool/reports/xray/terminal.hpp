// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tool/reports/xray/report.hpp"

namespace headgate::xray {

/// Style of a head map. `colours` draws background colours, for terminals.
/// `shades` draws characters of increasing density, for files and pipes.
enum class MapStyle { colours, shades };

/// Lists all that an X-ray measures, as JSON objects with the keys "name", "of" (such as "of heads") and "definition".
/// list_text() formats the same list as text.
nlohmann::ordered_json list_json();
std::string list_text();

/// Formats the verdict() on each model as a paragraph.
std::string verdicts_text(const std::vector<ModelXray>& models);

/// Formats the summary of an X-ray: the verdicts, and a table that compares the metric values of whole models.
/// Adds for each model a table of its layers if they are of several types.
/// Adds small maps of the heads, with a line for each layer and a cell for each head.
/// Adds the changes of the loss if heads or layers were overridden.
std::string headline_text(const std::vector<ModelXray>& models, MapStyle style);

}  // namespace headgate::xray
