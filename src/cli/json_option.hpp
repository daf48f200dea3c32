// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <functional>
#include <string>

#include "cli/command_line.hpp"
#include "cli/output_files.hpp"

// --json prints JSON, in every verb that has it; --json-out writes it to a file, in verbs whose report is kept.

namespace headgate::cli {

/// Declares --json. `what`: what it prints, "the figures" for instance.
inline Option declare_json(VerbOptions& verb, bool& print, const std::string& what) {
  return verb.flag("--json", print, fmt::format("Print {} as JSON", what));
}

/// Where a report goes as JSON.
struct JsonOutput {
  bool print = false;  ///< --json: to stdout, which then has nothing else
  std::string file;    ///< --json-out; empty: to none

  bool wanted() const { return print || !file.empty(); }
  /// Writes the file first, and says so: a failure leaves stdout empty.
  void write(const std::string& verb, const std::string& text) const {
    if (!file.empty()) write_output(verb, file, text);
    if (print) std::fwrite(text.data(), 1, text.size(), stdout);
  }
};

/// Declares --json and --json-out. `--json FILE`, which former versions had, is --json-out where the word after --json
/// ends in ".json" or is_argument(word) is false.
inline void declare_json(VerbOptions& verb, JsonOutput& json, const std::string& what,
                         const std::function<bool(const std::string& word)>& is_argument) {
  declare_json(verb, json.print, what);
  verb.value("--json-out", json.file, "FILE.json", fmt::format("Write {} as JSON to a file", what));
  verb.took_file("--json", "--json-out",
                 [is_argument](const std::string& word) { return !word.ends_with(".json") && is_argument(word); });
}

}  // namespace headgate::cli
