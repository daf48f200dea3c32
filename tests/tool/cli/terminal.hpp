// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace headgate::testing {

/// Holds what a program showed on a terminal.
struct Screen {
  int status = -1;
  std::string output;               ///< all bytes
  std::vector<std::string> frames;  ///< each state of the redrawn line, without control codes
};

/// Runs a program on a pseudo-terminal of this width. 0: the terminal does not report its width. `environment`:
/// "NAME=VALUE", added to this process's without COLUMNS. Progress appears at once. `typed`: what standard input, the
/// terminal too, has.
Screen run_on_terminal(int columns, const std::vector<std::string>& command,
                       const std::vector<std::string>& environment = {}, const std::string& typed = "");

}  // namespace headgate::testing
