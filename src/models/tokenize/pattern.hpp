// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "models/tokenize/pending_text.hpp"

// Searches for regular expressions in UTF-8 text with PCRE2, compiled by its JIT compiler where possible. Only
// pattern.cc includes the header of PCRE2. A search that takes too many steps throws TokenizerError, which limits the
// time for any pattern and text.

namespace headgate::tokenize {

struct Match {
  std::size_t begin = 0;
  std::size_t end = 0;  ///< offset after the match; an empty match has end == begin
};

/// Result of a search in a text that may continue.
/// - none: no match begins in the text.
/// - match: a match was found, and later text cannot change it.
/// - undecided: a match may begin at Match::begin, depending on later text. No match begins before it.
enum class Found { none, match, undecided };

/// A compiled pattern. Several threads may use a pattern at the same time, each with its own PatternSearch.
class Pattern {
 public:
  /// Compiles a regular expression in the syntax of tokenizer.json. Throws TokenizerError for a syntax error and for
  /// syntax that pcre_syntax() does not support.
  explicit Pattern(std::string_view regex);

  /// Returns an upper bound of how many bytes before a match the pattern's lookbehinds read.
  std::size_t reach_back() const;
  const std::string& regex() const { return regex_; }

 private:
  friend class PatternSearch;
  struct Code;
  std::string regex_;
  std::shared_ptr<const Code> code_;
};

/// Searches for one pattern and reuses memory between searches. The pattern must outlive the object.
class PatternSearch {
 public:
  explicit PatternSearch(const Pattern& pattern);
  PatternSearch(PatternSearch&&) noexcept;
  PatternSearch& operator=(PatternSearch&&) noexcept;
  ~PatternSearch();

  /// Finds the first match at or after `from`. `text` must be valid UTF-8. Returns Found::undecided only for
  /// More::may_follow. Throws TokenizerError if the search exceeds its limits.
  Found find(Match& match, std::string_view text, std::size_t from, More more = More::none);

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

}  // namespace headgate::tokenize
