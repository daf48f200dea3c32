// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "models/tokenize/held_text.hpp"

// Searches regular expressions in UTF-8 with PCRE2, whose header only pattern.cc includes, and with its JIT where the
// processor has one. A search that takes too many steps throws TokenizerError, so no pattern makes a text take forever.

namespace headgate::tokenize {

struct Match {
  std::size_t begin = 0;
  std::size_t end = 0;  ///< may be `begin`
};

/// The result of a search:
///  - none: no match begins in the text;
///  - match: a match that no continuation of the text changes;
///  - undecided: no match begins before Match::begin, and the continuation decides whether one begins there.
enum class Found { none, match, undecided };

/// A compiled pattern; searches from several threads at once are allowed, each with a PatternSearch of its own.
class Pattern {
 public:
  /// `regex` as in tokenizer.json (pcre_syntax). Throws TokenizerError.
  explicit Pattern(std::string_view regex);

  /// Returns how many bytes before a position may decide whether a match begins there.
  std::size_t reach_back() const;
  const std::string& regex() const { return regex_; }

 private:
  friend class PatternSearch;
  struct Code;
  std::string regex_;
  std::shared_ptr<const Code> code_;
};

/// Holds the memory of searches for one pattern, which must outlive it.
class PatternSearch {
 public:
  explicit PatternSearch(const Pattern& pattern);
  PatternSearch(PatternSearch&&) noexcept;
  PatternSearch& operator=(PatternSearch&&) noexcept;
  ~PatternSearch();

  /// Finds the first match at or after `from` in well-formed UTF-8. Returns undecided only for Tail::open. Throws
  /// TokenizerError for a search beyond its limits.
  Found find(Match& match, std::string_view text, std::size_t from, Tail tail = Tail::ended);

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

}  // namespace headgate::tokenize
