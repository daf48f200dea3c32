// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "models/tokenize/held_text.hpp"

// Searches for regular expressions in UTF-8 with PCRE2, compiled by its JIT where available. Only pattern.cc includes
// the header of PCRE2. A search that takes too many steps throws TokenizerError, which bounds the time for every
// pattern and text.

namespace headgate::tokenize {

struct Match {
  std::size_t begin = 0;
  std::size_t end = 0;  ///< equal to `begin` for an empty match
};

/// The result of a search.
/// - none: no match begins in the text.
/// - match: further text cannot change the match.
/// - undecided: no match begins before Match::begin, but one may begin there, depending on further text.
enum class Found { none, match, undecided };

/// A compiled pattern. Several threads may search with it at once, each with its own PatternSearch.
class Pattern {
 public:
  /// Compiles a regular expression in the syntax of tokenizer.json, which pcre_syntax() converts. Throws TokenizerError
  /// for a syntax error or unsupported syntax.
  explicit Pattern(std::string_view regex);

  /// Returns an upper bound of the number of bytes before a match that the pattern's lookbehinds read.
  std::size_t reach_back() const;
  const std::string& regex() const { return regex_; }

 private:
  friend class PatternSearch;
  struct Code;
  std::string regex_;
  std::shared_ptr<const Code> code_;
};

/// Searches for one pattern, and reuses its working memory. The pattern must outlive the object.
class PatternSearch {
 public:
  explicit PatternSearch(const Pattern& pattern);
  PatternSearch(PatternSearch&&) noexcept;
  PatternSearch& operator=(PatternSearch&&) noexcept;
  ~PatternSearch();

  /// Finds the first match at or after `from` in well-formed UTF-8. Returns undecided only for Tail::open. Throws
  /// TokenizerError if the search exceeds its limits.
  Found find(Match& match, std::string_view text, std::size_t from, Tail tail = Tail::ended);

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

}  // namespace headgate::tokenize
