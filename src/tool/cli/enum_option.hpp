// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "headgate/error.hpp"
#include "library/core/nearest_word.hpp"
#include "library/core/rows.hpp"
#include "tool/cli/command_line.hpp"

namespace headgate::cli {

/// Declares an option whose values are the words in OptionWords<Enum>.
/// Parsing stores the enumerator of the given word in `to`, an Enum or a std::optional<Enum>.
template <typename Enum, typename To>
Option declare_enum(VerbOptions& verb, const std::string& name, To& to, const std::string& type,
                    const std::string& help) {
  const auto take = [name, &to](const std::string& word) {
    try {
      to = parse_option_word<Enum>(name, word);
    } catch (const Error& error) {
      std::vector<std::string_view> known;
      known.reserve(OptionWords<Enum>::kAll.size());
      for (const auto& row : OptionWords<Enum>::kAll) known.push_back(row.word);
      throw Error(error.what() + did_you_mean(word, known));
    }
  };
  std::vector<std::string> words;
  words.reserve(OptionWords<Enum>::kAll.size());
  for (const auto& row : OptionWords<Enum>::kAll) words.emplace_back(row.word);
  return verb.word(name, take, type, help).suggests(words);
}

}  // namespace headgate::cli
