// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tool/reports/xray/report.hpp"

namespace headgate::xray {

/// colours: ANSI backgrounds of 256 colours. shades: characters, for files and pipes.
enum class MapStyle { colours, shades };

/// Every figure and its definition.
std::string list_text();

/// The figures of the whole models side by side, and for each model small maps of layers and heads: a row a layer, a
/// cell a head. Where heads or layers were overridden, how the loss changed.
std::string headline_text(const std::vector<ModelXray>& models, MapStyle style);

}  // namespace headgate::xray
