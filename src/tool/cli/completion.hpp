// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>

#include "library/core/words.hpp"
#include "tool/cli/description.hpp"

// Generates completion scripts for bash, zsh and fish.

namespace headgate::cli {

enum class Shell { bash, zsh, fish };

/// Returns a completion script. It completes verbs, options, the known values of options, and paths.
std::string completion_script(const ToolDescription& tool, Shell shell);

/// Returns the first clause of a help text. Completion menus show this clause beside an option.
std::string first_clause(const std::string& help);

}  // namespace headgate::cli

template <>
struct headgate::Words<headgate::cli::Shell> {
  using Value = cli::Shell;
  static constexpr std::array<Word<Value>, 3> kAll{{{Value::bash, "bash"}, {Value::zsh, "zsh"}, {Value::fish, "fish"}}};
};
