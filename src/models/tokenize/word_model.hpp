// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace headgate::tokenize {

/// A token of a word, and its bytes in the word.
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

  /// Returns how many bytes of the word a token stands for: fewer than end − begin if text between its parts has no
  /// token and is left out.
  virtual std::size_t spelled_bytes(const WordToken& token) const { return token.end - token.begin; }

  /// Returns whether may_cut() is true of some characters.
  virtual bool cuts() const { return false; }
  /// Returns whether a word may be cut between two neighbouring characters: the tokens of the parts are then those of
  /// the word, whatever stands around them.
  virtual bool may_cut(char32_t /*before*/, char32_t /*after*/) const { return false; }
};

}  // namespace headgate::tokenize
