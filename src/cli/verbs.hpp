// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>

// The verbs of the command line, one file each. A verb declares its options in add_<verb> and returns what runs once
// they are parsed; main lists the verbs, runs the chosen one and turns exceptions into one line on stderr.

namespace headgate::cli {

inline constexpr int kSuccess = 0;
inline constexpr int kCheckFailed = 1;
inline constexpr int kBadUsage = 2;  ///< bad options, bad input, or a file that cannot be read or written

/// Bad options or bad input: "headgate VERB: what()", exit status 2. headgate::Error is treated alike.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Verb {
  CLI::App* app = nullptr;
  std::function<int()> run;  ///< the exit status: kSuccess or kCheckFailed; throws on bad usage or input
};

Verb add_explain(CLI::App& root);
Verb add_attend(CLI::App& root);
Verb add_verify(CLI::App& root);
Verb add_bench(CLI::App& root);
Verb add_info(CLI::App& root);
Verb add_train(CLI::App& root);
Verb add_eval(CLI::App& root);
Verb add_demo(CLI::App& root);

}  // namespace headgate::cli
