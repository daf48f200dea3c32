// SPDX-License-Identifier: Apache-2.0
#include "python/headgate/keywords.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace headgate::python {

std::string signature_of(const char* name, const std::vector<ArgumentText>& arguments, std::size_t positional,
                         const char* result) {
  std::string text = fmt::format("def {}(", name);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (i > 0) text += ", ";
    if (i == positional) text += "*, ";
    text += fmt::format("{}: {}", arguments[i].name, arguments[i].type);
    if (!arguments[i].default_text.empty()) text += " = " + arguments[i].default_text;
  }
  return text + fmt::format(") -> {}", result);
}

std::string arguments_help(const std::vector<ArgumentText>& arguments) {
  std::string text;
  for (const ArgumentText& argument : arguments) {
    if (!argument.help.empty()) text += fmt::format("    {}: {}\n", argument.name, argument.help);
  }
  return text;
}

std::vector<ArgumentText> joined(std::vector<ArgumentText> texts, const std::vector<ArgumentText>& more) {
  texts.insert(texts.end(), more.begin(), more.end());
  return texts;
}

}  // namespace headgate::python
