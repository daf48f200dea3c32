// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

// Describes the command line as data: completions and manual pages are made of it. CommandLine::describe() takes it
// from the options that --help shows, so that nothing is listed twice.

namespace headgate::cli {

/// What a shell offers as a value.
enum class ValueKind { none, words, path, text };

struct OptionDescription {
  std::vector<std::string> names;  ///< "-n", "--max-tokens"; of an argument "MODEL"
  std::string type;                ///< what --help calls the value; empty: the option is a flag
  std::string help;
  std::string group;  ///< heading in --help
  bool positional = false;
  bool required = false;
  bool several = false;            ///< an argument that takes one or more values
  std::vector<std::string> words;  ///< known values

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
