// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tool/cli/description.hpp"

// Generates manual pages with the macros of man(7).

namespace headgate::cli {

/// Returns the manual page headgate(1), which lists the verbs.
std::string tool_page(const ToolDescription& tool);
/// Returns the manual page of a verb, headgate-VERB(1).
std::string verb_page(const ToolDescription& tool, const VerbDescription& verb);

}  // namespace headgate::cli
