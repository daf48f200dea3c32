// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace headgate::tokenize {

/// A token of a word. It represents the bytes [begin, end) of the word.
struct WordToken {
  std::int32_t id;
  std::uint32_t begin;
  std::uint32_t end;
};

/// Splits words into tokens. Models are immutable, so several threads may share one.
class WordModel {
 public:
  virtual ~WordModel() = default;

  /// Splits a word of at most 2^32 − 1 bytes. Overwrites `tokens`.
  virtual void encode(std::vector<WordToken>& tokens, std::string_view word) const = 0;

  /// Returns how many bytes of the word a token represents. This is less than end − begin if bytes inside the range
  /// [begin, end) have no token and were dropped.
  virtual std::size_t spelled_bytes(const WordToken& token) const { return token.end - token.begin; }

  /// Returns whether may_cut() can return true: false means that words are never cut.
  virtual bool cuts() const { return false; }
  /// Returns whether a word may be cut between two neighbouring characters. If true, encoding both pieces separately
  /// gives the same tokens as encoding the whole word, for any other characters in the word.
  virtual bool may_cut(char32_t /*before*/, char32_t /*after*/) const { return false; }
};

}  // namespace headgate::tokenize
