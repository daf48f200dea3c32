// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace headgate::testing {

struct Outcome {
  int status = -1;  ///< exit status; 128 + n after signal n, as in shells
  std::string out;
  std::string err;
};

/// Runs a program with its output captured.
Outcome run_program(const std::vector<std::string>& command);

/// Runs the built `headgate`.
Outcome headgate(std::vector<std::string> arguments);

/// Returns the tool's path.
std::string headgate_path();

/// Checks the form of a refusal: status 2, nothing on stdout, on stderr the one line "headgate VERB: … `reason` …".
void expect_refused(const Outcome& outcome, const std::string& verb, const std::string& reason);

}  // namespace headgate::testing
