// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "library/core/check.hpp"

// Maps enumerators to their names in options, files and messages. These names are called words. Each enum has a table
// of its words.

namespace headgate {

template <typename Enum>
struct Word {
  Enum value;
  std::string_view word;
};

/// The table of an enum's words. Specialise this struct beside the enum, with a constexpr array `kAll` of rows. A row
/// has an enumerator `value` and its name `word`. Messages list the words in the order of the rows.
template <typename Enum>
struct Words;

/// Returns the word of an enumerator, or "unknown" if the enumerator has no row.
template <typename Enum>
constexpr std::string_view word_of(Enum value) {
  for (const auto& row : Words<Enum>::kAll) {
    if (row.value == value) return row.word;
  }
  return "unknown";
}

/// Returns whether `text` equals `word`. `text` may have '-' where `word` has '_', as is usual on command lines.
constexpr bool is_word(std::string_view text, std::string_view word) {
  if (text.size() != word.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != word[i] && (text[i] != '-' || word[i] != '_')) return false;
  }
  return true;
}

/// Returns the enumerator with the word `text`, or nothing if there is none.
template <typename Enum>
constexpr std::optional<Enum> find_word(std::string_view text) {
  for (const auto& row : Words<Enum>::kAll) {
    if (is_word(text, row.word)) return row.value;
  }
  return std::nullopt;
}

/// Lists the words of an enum, for example "sigmoid, sigmoid2, …".
template <typename Enum>
std::string list_words(std::string_view separator = ", ") {
  std::string out;
  for (const auto& row : Words<Enum>::kAll) {
    if (!out.empty()) out += separator;
    out += row.word;
  }
  return out;
}

/// Returns the enumerator with the word `text`. Throws Error, "WHAT: 'TEXT' is none of …", if there is none.
template <typename Enum>
Enum parse_word(std::string_view what, std::string_view text) {
  const std::optional<Enum> found = find_word<Enum>(text);
  require(found.has_value(), "{}: '{}' is none of {}", what, text, list_words<Enum>());
  return *found;
}

}  // namespace headgate
