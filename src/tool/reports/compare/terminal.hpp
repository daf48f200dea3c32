// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tool/reports/compare/report.hpp"

namespace headgate::compare {

/// Returns a table with a line for each run: steps, tokens and last figures, "-" for missing ones. Adds notes on
/// records that were left out, and charts of the main figures over steps. A letter stands for each run in the charts.
std::string runs_text(const std::vector<ComparedRun>& runs);

}  // namespace headgate::compare
