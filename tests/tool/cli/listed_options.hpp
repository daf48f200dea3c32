// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

// Reads what --help lists, which tests of every option walk.

namespace headgate::testing {

struct ListedOption {
  std::string verb;
  std::string name;
  std::string short_name;  ///< "-n"; empty: none
  bool has_value = false;
};

/// Returns the verbs that `headgate --help` lists.
std::vector<std::string> listed_verbs();

/// Returns all options that `headgate VERB --help` lists, except --help itself.
std::vector<ListedOption> listed_options(const std::string& verb);

}  // namespace headgate::testing
