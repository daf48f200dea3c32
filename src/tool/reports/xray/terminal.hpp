// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tool/reports/xray/report.hpp"

namespace headgate::xray {

/// Styles of head maps. colours: backgrounds from the ANSI palette of 256 colours. shades: characters, for files and
/// pipes.
enum class MapStyle { colours, shades };

/// Return all figures with their definitions: a list of objects with the keys `name`, `of` and `definition`, or text.
nlohmann::ordered_json list_json();
std::string list_text();

/// Returns the verdict() on each model, one paragraph each.
std::string verdicts_text(const std::vector<ModelXray>& models);

/// Returns the verdicts, and the figures of whole models side by side. Adds a table of layers for each model with
/// several types of layers. Adds small maps for each model, with one row per layer and one cell per head. Adds the
/// changes of the loss if heads or layers were overridden.
std::string headline_text(const std::vector<ModelXray>& models, MapStyle style);

}  // namespace headgate::xray
