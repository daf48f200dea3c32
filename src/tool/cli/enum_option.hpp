// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "library/core/nearest_word.hpp"
#include "library/core/rows.hpp"
#include "tool/cli/command_line.hpp"

namespace headgate::cli {

/// Returns the words that users type for the values of an enum. `Table` is Words<Enum> or OptionWords<Enum>.
template <class Table>
std::vector<std::string> words_in() {
  std::vector<std::string> words;
  words.reserve(Table::kAll.size());
  for (const auto& row : Table::kAll) words.emplace_back(row.word);
  return words;
}

/// Declares an option whose value is a word for an enumerator. OptionWords<Enum> lists these words.
/// Parsing stores the enumerator in `to`, which is an Enum or a std::optional<Enum>.
template <typename Enum, typename To>
Option declare_enum(VerbOptions& verb, const std::string& name, To& to, const std::string& type,
                    const std::string& help) {
  const std::vector<std::string> words = words_in<OptionWords<Enum>>();
  const auto take = [name, &to, words](const std::string& word) {
    try {
      to = parse_option_word<Enum>(name, word);
    } catch (const Error& error) {
      throw Error(error.what() + did_you_mean(word, {words.begin(), words.end()}));
    }
  };
  return verb.word(name, take, type, help).suggests(words);
}

}  // namespace headgate::cli
