// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

// What `headgate info` and `headgate doctor` know of this machine.

namespace headgate::cli {

/// A line of text, or a value of a JSON object.
struct Fact {
  std::string label;
  nlohmann::ordered_json value;  ///< a string, a number, a list of strings, an object, or null
  std::string shown{};           ///< text in place of the value; empty: the value

  /// Returns the label with '_' for spaces.
  std::string key() const;
  std::string text() const;
};

/// Returns the facts of `headgate info`. Throws Error if HEADGATE_ISA names a target that is not supported.
std::vector<Fact> machine_facts();

/// Returns one line a fact.
std::string fact_lines(const std::vector<Fact>& facts);
/// Returns an object with the facts in their order.
nlohmann::ordered_json fact_object(const std::vector<Fact>& facts);

}  // namespace headgate::cli
