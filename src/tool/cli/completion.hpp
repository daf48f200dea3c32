// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>

#include "library/core/words.hpp"
#include "tool/cli/description.hpp"

// Makes the completion scripts of shells.

namespace headgate::cli {

enum class Shell { bash, zsh, fish };

/// Returns a script that completes verbs, options, words of options, and files where a path is wanted.
std::string completion_script(const ToolDescription& tool, Shell shell);

/// Returns the first clause of a help text, which lists of options show.
std::string first_clause(const std::string& help);

}  // namespace headgate::cli

template <>
struct headgate::Words<headgate::cli::Shell> {
  using Value = cli::Shell;
  static constexpr std::array<Word<Value>, 3> kAll{{{Value::bash, "bash"}, {Value::zsh, "zsh"}, {Value::fish, "fish"}}};
};
