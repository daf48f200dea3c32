// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "library/core/format.hpp"

// Finds the known word nearest to a mistyped one, for "did you mean …?" in messages.

namespace headgate {

/// Returns the number of edits that turn `a` into `b`. An edit inserts, removes or replaces a character or swaps two
/// neighbours. '_' and '-' count as equal.
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) { return (x == '_' ? '-' : x) == (y == '_' ? '-' : y); };
  // distance(i, j) is the number of edits that turn the first i characters of a into the first j of b. Keeps only the
  // rows i − 2, i − 1 and i of this table, in `before`, `last` and `row`.
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, last);
    std::swap(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

/// Returns the word of `known` with the fewest edits from `text`; the first such word if there are several. Ignores
/// words whose edits exceed a third of the longer word's characters. If all words are ignored, returns the first word
/// that begins with `text`. Returns "" if there is none.
inline std::string_view nearest_word(std::string_view text, const std::vector<std::string_view>& known) {
  // Least length of a text for which a word that begins with it is suggested.
  constexpr std::size_t kLeastBeginning = 3;
  // Longer texts get no suggestion, because the search takes quadratic time.
  constexpr std::size_t kMostCharacters = 64;
  std::string_view nearest;
  if (text.size() > kMostCharacters) return nearest;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const std::string_view word : known) {
    const std::size_t distance = edit_distance(text, word);
    if (distance > std::max(text.size(), word.size()) / 3 || distance >= least) continue;
    least = distance;
    nearest = word;
  }
  if (!nearest.empty() || text.size() < kLeastBeginning) return nearest;
  const auto begun = std::find_if(known.begin(), known.end(), [&](std::string_view w) { return w.starts_with(text); });
  return begun == known.end() ? nearest : *begun;
}

/// Returns "; did you mean WORD?", where WORD is nearest_word(). Returns "" if there is none.
inline std::string did_you_mean(std::string_view text, const std::vector<std::string_view>& known) {
  const std::string_view word = nearest_word(text, known);
  return word.empty() ? std::string() : formatted("; did you mean {}?", word);
}

/// Returns "'TEXT' is none of A, B, …; did you mean B?".
inline std::string word_complaint(std::string_view text, const std::vector<std::string_view>& known) {
  return formatted("'{}' is none of {}{}", text, comma_separated(known), did_you_mean(text, known));
}

}  // namespace headgate
