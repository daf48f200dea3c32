// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace headgate::tokenize {

/// A token of a word, with its bytes [begin, end) in the word.
struct WordToken {
  std::int32_t id;
  std::uint32_t begin;
  std::uint32_t end;
};

/// Splits words into tokens. Objects are immutable, and several threads may use one.
class WordModel {
 public:
  virtual ~WordModel() = default;

  /// Splits a word of at most 2^32 − 1 bytes. Overwrites `tokens`.
  virtual void encode(std::vector<WordToken>& tokens, std::string_view word) const = 0;

  /// Returns the number of bytes of the word that a token represents. Less than end − begin if bytes inside the token's
  /// range have no token and were dropped.
  virtual std::size_t spelled_bytes(const WordToken& token) const { return token.end - token.begin; }

  /// Returns whether words can be cut at all; if not, may_cut() is always false.
  virtual bool cuts() const { return false; }
  /// Returns whether a word may be cut between two neighbouring characters. Encoding both pieces separately then gives
  /// the tokens of the word, whatever its other characters are.
  virtual bool may_cut(char32_t /*before*/, char32_t /*after*/) const { return false; }
};

}  // namespace headgate::tokenize
