// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

// Collects the facts about this machine that `headgate info` and `headgate doctor` print.

namespace headgate::cli {

/// A fact about this machine, printed as a line of text or as a member of a JSON object.
struct Fact {
  std::string label;
  nlohmann::ordered_json value;  ///< a string, a number, a list of strings, an object, or null
  std::string shown{};           ///< text to print instead of `value`; if empty, `value` is printed

  /// Returns the key in JSON: the label with '_' in place of spaces.
  std::string key() const;
  std::string text() const;
};

/// A fact about this machine that `headgate info` prints: its label, explanation and value.
struct MachineFact {
  const char* label;
  const char* meaning;  ///< explanation of the fact, for the help text
  const char* type;     ///< type of the value in JSON, for the help text
  /// Returns the value. Throws Error if the value depends on HEADGATE_ISA and this variable names no supported target.
  nlohmann::ordered_json (*value)();
  const char* text_if_null = "";
};

/// Lists the facts of `headgate info` in the order of its output.
const std::vector<MachineFact>& machine_fact_rows();

/// Returns the facts of `headgate info`. Throws Error if HEADGATE_ISA names a target that is not supported.
std::vector<Fact> machine_facts();

/// Formats the facts as text, one per line.
std::string fact_lines(const std::vector<Fact>& facts);
/// Returns a JSON object with one member for each fact, in the given order.
nlohmann::ordered_json fact_object(const std::vector<Fact>& facts);

}  // namespace headgate::cli
