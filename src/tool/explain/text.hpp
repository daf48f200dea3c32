// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "tool/explain/problem.hpp"
#include "tool/explain/solution.hpp"

// Formats a solution with every number rounded to `decimals` digits after the point.

namespace headgate::explain {

/// Returns the solution as numbered steps, each with its labelled matrices.
std::string page_text(const WorkedProblem& problem, const Solution& solution, int decimals);

/// Returns the solution as one JSON object with one key per line. Without `decimals`, numbers are not rounded: reading
/// them gives the same doubles.
std::string json_text(const Solution& solution, std::optional<int> decimals);

}  // namespace headgate::explain
