// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

// Describes the command line as data, from which completions and manual pages are generated. CommandLine::describe()
// reads the options that --help shows, so that no option is listed twice in the code.

namespace headgate::cli {

/// The kind of value that a shell completes for an option.
enum class ValueKind { none, words, path, text };

struct OptionDescription {
  std::vector<std::string> names;  ///< names of the option ("-n", "--max-tokens") or of the argument ("MODEL")
  std::string type;                ///< name of the value in --help; empty: the option is a flag
  std::string help;
  std::string group;  ///< heading in --help
  bool positional = false;
  bool required = false;
  bool several = false;            ///< an argument that takes one or more values
  std::vector<std::string> words;  ///< values that shell completion offers

  ValueKind kind() const;
  const std::string& long_name() const { return names.back(); }
};

struct VerbDescription {
  std::string name;  ///< empty: the tool itself
  std::string summary;
  std::string description;  ///< paragraphs, without the summary
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
