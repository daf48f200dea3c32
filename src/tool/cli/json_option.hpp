// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tool/cli/command_line.hpp"
#include "tool/cli/output_files.hpp"

// Declares --json, which prints JSON, and --json-out, which writes it to a file.

namespace headgate::cli {

/// Formats JSON for --json, indented by 2. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(const nlohmann::ordered_json& json);
/// Formats JSON on one line, for JSON Lines. Bytes that are not UTF-8 become U+FFFD.
std::string json_line(const nlohmann::ordered_json& json);

/// Declares --json. `what`: the noun in "Print ... as JSON", for instance "the figures".
inline Option declare_json(VerbOptions& verb, bool& print, const std::string& what) {
  return verb.flag("--json", print, fmt::format("Print {} as JSON", what));
}

/// Destinations of a JSON report: stdout, a file, or both.
struct JsonOutput {
  bool print = false;  ///< --json: to stdout, without any other text
  std::string file;    ///< --json-out: path of the file; empty: no file

  bool wanted() const { return print || !file.empty(); }
  /// Writes `text` to the file, then to stdout. If writing the file fails, stdout stays empty.
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
