// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "library/core/check.hpp"

// Enums and the words that options, files and messages have for their values: each table stands once, beside its enum.

namespace headgate {

template <typename Enum>
struct Word {
  Enum value;
  std::string_view word;
};

/// Specialise it beside the enum, with `kAll`: a constexpr array of rows that have `value` and `word`, in the order in
/// which messages list them.
template <typename Enum>
struct Words;

/// The word of `value`. Every value has a row.
template <typename Enum>
constexpr std::string_view word_of(Enum value) {
  for (const auto& row : Words<Enum>::kAll) {
    if (row.value == value) return row.word;
  }
  return "unknown";
}

/// Whether `text` is `word`, which it may also write with '-' for '_', as on a command line.
constexpr bool is_word(std::string_view text, std::string_view word) {
  if (text.size() != word.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != word[i] && (text[i] != '-' || word[i] != '_')) return false;
  }
  return true;
}

/// The value whose word is `text`; empty when there is none.
template <typename Enum>
constexpr std::optional<Enum> find_word(std::string_view text) {
  for (const auto& row : Words<Enum>::kAll) {
    if (is_word(text, row.word)) return row.value;
  }
  return std::nullopt;
}

/// "sigmoid, sigmoid2, …".
template <typename Enum>
std::string list_words(std::string_view separator = ", ") {
  std::string out;
  for (const auto& row : Words<Enum>::kAll) {
    if (!out.empty()) out += separator;
    out += row.word;
  }
  return out;
}

/// The value whose word is `text`. Throws Error, "WHAT: 'TEXT' is none of …", when there is none.
template <typename Enum>
Enum parse_word(std::string_view what, std::string_view text) {
  const std::optional<Enum> found = find_word<Enum>(text);
  require(found.has_value(), "{}: '{}' is none of {}", what, text, list_words<Enum>());
  return *found;
}

}  // namespace headgate
