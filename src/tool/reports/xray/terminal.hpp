// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tool/reports/xray/report.hpp"

namespace headgate::xray {

/// How a head map is drawn: by background colours on a terminal, or by characters of varying density in files and
/// pipes.
enum class MapStyle { colours, shades };

/// Return all figures of an X-ray with their definitions. list_text() formats what list_json() returns: a list of
/// objects.
/// Each object has the keys "name", "of" (such as "of heads") and "definition".
nlohmann::ordered_json list_json();
std::string list_text();

/// Formats the verdict() on each model as a paragraph.
std::string verdicts_text(const std::vector<ModelXray>& models);

/// Formats the summary of an X-ray: the verdicts, and a table that compares the figures of whole models.
/// Adds for each model a table of its layers if they are of several types.
/// Adds small maps of the heads, with a line for each layer and a cell for each head.
/// Adds the changes of the loss if heads or layers were overridden.
std::string headline_text(const std::vector<ModelXray>& models, MapStyle style);

}  // namespace headgate::xray
