// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

// Describes the command line as data, from which shell completions and manual pages are generated.
// CommandLine::describe() derives the data from the declared options, so that each option is declared only once.

namespace headgate::cli {

/// Kind of completion that a shell offers for an option's value:
/// - none: the option is a flag
/// - words: a list of words
/// - path: files and directories
/// - text: no completion
enum class ValueKind { none, words, path, text };

struct OptionDescription {
  std::vector<std::string> names;  ///< names of an option ("-n", "--max-tokens") or of a positional argument ("MODEL")
  std::string type;                ///< name of the value in --help; empty for a flag
  std::string help;
  std::string group;  ///< heading in --help under which the option is listed
  bool positional = false;
  bool required = false;
  bool several = false;            ///< true if the argument takes one or more values
  std::vector<std::string> words;  ///< values that shell completion offers

  ValueKind kind() const;
  const std::string& long_name() const { return names.back(); }
};

struct VerbDescription {
  std::string name;  ///< name of the verb; empty for `headgate` itself
  std::string summary;
  std::string description;  ///< paragraphs after the summary
  std::vector<OptionDescription> options;
  std::string footer;
};

struct ToolDescription {
  std::string version;
  std::string exit_status;
  VerbDescription tool;
  std::vector<VerbDescription> verbs;
};

}  // namespace headgate::cli
