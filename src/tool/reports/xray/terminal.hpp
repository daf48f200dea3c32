// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tool/reports/xray/report.hpp"

namespace headgate::xray {

/// colours: ANSI backgrounds of 256 colours. shades: characters, for files and pipes.
enum class MapStyle { colours, shades };

/// Returns every figure and its definition: a list of objects with name, of and definition, or as text.
nlohmann::ordered_json list_json();
std::string list_text();

/// Returns what the figures of each model say, a paragraph for each.
std::string verdicts_text(const std::vector<ModelXray>& models);

/// Returns the verdicts and the figures of whole models side by side. Each model whose layers differ adds a table of
/// its layers. Each model adds small maps, with one row per layer and one cell per head. If heads or layers were
/// overridden, it also shows how the loss changed.
std::string headline_text(const std::vector<ModelXray>& models, MapStyle style);

}  // namespace headgate::xray
