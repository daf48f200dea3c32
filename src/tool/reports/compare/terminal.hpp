// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tool/reports/compare/report.hpp"

namespace headgate::compare {

/// A line for each run: its steps, tokens and last figures, "-" where it has none; below, what was left out, and charts
/// of the main figures over steps, in which a letter stands for a run.
std::string runs_text(const std::vector<ComparedRun>& runs);

}  // namespace headgate::compare
