// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "tool/cli/command_line.hpp"

// Declares the verbs (subcommands) of the command line. Each verb has a source file with a function add_VERB().
// add_VERB() declares the options and returns a Verb. Verb::run executes the verb.
// main() lists the verbs, runs the chosen one and prints an exception as one line on stderr.

namespace headgate::cli {

/// Help text of the positional argument MODEL.
inline constexpr const char* kModelHelp =
    "A model's directory or GGUF file, or its name on the Hugging Face Hub, OWNER/NAME or OWNER/NAME@REVISION, where "
    "`hf download` has put it into the Hub's cache";

inline constexpr int kSuccess = 0;
inline constexpr int kCheckFailed = 1;
inline constexpr int kBadUsage = 2;  ///< exit status: bad options, bad input, or a file that cannot be read or written

/// Thrown for bad options or bad input. main() prints "headgate VERB: what()" and exits with status kBadUsage.
/// main() does the same for headgate::Error.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Verb {
  std::string name;
  std::function<int()> run;  ///< returns kSuccess or kCheckFailed as exit status; throws on bad usage or input
  /// Whether the verb runs models. If so, main() calls spin_less(), because the models' OpenMP threads often wait.
  bool runs_models = false;
};

Verb add_explain(CommandLine& line);
Verb add_attend(CommandLine& line);
Verb add_linear(CommandLine& line);
Verb add_verify(CommandLine& line);
Verb add_bench(CommandLine& line);
Verb add_doctor(CommandLine& line);
Verb add_info(CommandLine& line);
Verb add_train(CommandLine& line);
Verb add_eval(CommandLine& line);
Verb add_generate(CommandLine& line);
Verb add_convert(CommandLine& line);
Verb add_tokenize(CommandLine& line);
Verb add_xray(CommandLine& line);
Verb add_compare(CommandLine& line);
Verb add_demo(CommandLine& line);
// The three verbs below print descriptions of all verbs, which they read from `line`. `line` must outlive them.
Verb add_help(CommandLine& line);
Verb add_completion(CommandLine& line);
Verb add_man(CommandLine& line);

}  // namespace headgate::cli
