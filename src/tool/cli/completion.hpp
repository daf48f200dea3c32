// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>

#include "library/core/words.hpp"
#include "tool/cli/description.hpp"

// Generates completion scripts for bash, zsh and fish.

namespace headgate::cli {

enum class Shell { bash, zsh, fish };

/// Returns a script that completes verbs, options, known option values, and file names for values that are paths.
std::string completion_script(const ToolDescription& tool, Shell shell);

/// Returns the first clause of a help text, which completion menus show.
std::string first_clause(const std::string& help);

}  // namespace headgate::cli

template <>
struct headgate::Words<headgate::cli::Shell> {
  using Value = cli::Shell;
  static constexpr std::array<Word<Value>, 3> kAll{{{Value::bash, "bash"}, {Value::zsh, "zsh"}, {Value::fish, "fish"}}};
};
