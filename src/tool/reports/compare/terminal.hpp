// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tool/reports/compare/report.hpp"

namespace headgate::compare {

/// Formats a table that compares training runs. Each line holds the steps, tokens and last metric values of a run.
/// Adds notes on records that were left out, and charts of the main metric values over the steps.
/// The table and the charts name each run by a letter or a digit: a-z, A-Z, 0-9. Charts omit runs beyond these, and a
/// line says so. "-" marks a missing value.
std::string runs_text(const std::vector<ComparedRun>& runs);

}  // namespace headgate::compare
