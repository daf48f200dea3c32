// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/listed_options.hpp"

#include <regex>
#include <sstream>

#include "tool/cli/tool.hpp"

namespace headgate::testing {

std::vector<std::string> listed_verbs() {
  std::vector<std::string> out;
  std::istringstream help(headgate({"--help"}).out);
  bool listed = false;
  for (std::string line; std::getline(help, line);) {
    if (line == "Verbs:") {
      listed = true;
    } else if (listed && line.starts_with("  ") && line[2] != ' ') {
      out.push_back(line.substr(2, line.find(' ', 2) - 2));
    } else if (!line.starts_with("  ")) {
      listed = false;
    }
  }
  return out;
}

std::vector<ListedOption> listed_options(const std::string& verb) {
  const std::regex entry("  (?:(-\\w), )?(--[a-z0-9-]+)( \\S.*)?(  .*)?");
  std::vector<ListedOption> out;
  std::istringstream help(headgate({verb, "--help"}).out);
  for (std::string line; std::getline(help, line);) {
    std::smatch found;
    if (!std::regex_match(line, found, entry) || found[2] == "--help") continue;
    const std::string rest = found[3];
    const bool has_value = rest.size() > 1 && rest[1] != ' ';  // otherwise the explanation follows, in its column
    out.push_back({verb, found[2], found[1], has_value});
  }
  return out;
}

}  // namespace headgate::testing
