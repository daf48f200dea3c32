// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tool/explain/problem.hpp"
#include "tool/explain/solution.hpp"

// Prints a solution, every number rounded to `decimals` digits after the point.

namespace headgate::explain {

/// Returns numbered steps, each with its labelled matrices.
std::string page_text(const WorkedProblem& problem, const Solution& solution, int decimals);

/// Returns one JSON object, with one key a line.
std::string json_text(const Solution& solution, int decimals);

}  // namespace headgate::explain
