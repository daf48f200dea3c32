// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tool/reports/compare/report.hpp"

namespace headgate::compare {

/// Returns a line for each run: its steps, tokens and last figures, "-" for those that it lacks. Below follow what was
/// left out, and charts of the main figures over steps, in which a letter stands for each run.
std::string runs_text(const std::vector<ComparedRun>& runs);

}  // namespace headgate::compare
