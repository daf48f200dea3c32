// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "models/io/json.hpp"
#include "tool/cli/command_line.hpp"
#include "tool/cli/output_files.hpp"

// Declares the options --json, which prints JSON on stdout, and --json-out, which writes JSON to a file.

namespace headgate::cli {

using io::json_line;
using io::json_text;

/// Declares --json with the help text "Print WHAT as JSON", where WHAT is `what`, such as "the figures".
inline Option declare_json(VerbOptions& verb, bool& print, const std::string& what) {
  return verb.flag("--json", print, fmt::format("Print {} as JSON", what));
}

/// Destinations of a JSON report: stdout, a file, both or none.
struct JsonOutput {
  bool print = false;  ///< --json: print the report, and no other text, on stdout
  std::string file;    ///< --json-out: path of the file to write; empty for no file

  bool wanted() const { return print || !file.empty(); }
  /// Writes `text` to the file first and then to stdout. Prints nothing if the file cannot be written.
  void write(const std::string& verb, const std::string& text) const {
    if (!file.empty()) write_output(verb, file, text);
    if (print) std::fwrite(text.data(), 1, text.size(), stdout);
  }
};

/// Declares --json and --json-out.
inline void declare_json(VerbOptions& verb, JsonOutput& json, const std::string& what) {
  declare_json(verb, json.print, what);
  verb.value("--json-out", json.file, "FILE.json", fmt::format("Write {} as JSON to a file", what));
}

}  // namespace headgate::cli
