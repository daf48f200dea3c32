// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/tokenize/string_table.hpp"

// Splits one word by byte-pair encoding. It starts with one token a byte. Then it merges, again and again, the
// neighbouring pair whose merge comes first in the list (the leftmost of equal pairs), until no pair has a merge.

namespace headgate::tokenize {

inline constexpr std::int32_t kNoToken = -1;
inline constexpr std::int32_t kMostTokens = 1 << 20;  ///< bound of ids: several times the largest vocabulary in use

/// Maps tokens by id and by spelling.
class Vocabulary {
 public:
  /// Throws TokenizerError for an id or a spelling that exists already, an id out of range and an empty spelling.
  void add(std::int64_t id, std::string_view spelling);

  /// Returns the largest id + 1.
  std::int32_t size() const { return static_cast<std::int32_t>(by_id_.size()); }
  /// Returns kNoToken if there is none.
  std::int32_t find(std::string_view spelling) const;
  /// Returns an empty spelling for an id without a token.
  std::string_view spelling(std::int32_t id) const;

 private:
  StringTable spellings_;
  std::vector<std::int32_t> ids_;    ///< of each spelling
  std::vector<std::int32_t> by_id_;  ///< number of its spelling; StringTable::kAbsent without one
};

using MergeList =
    std::vector<std::pair<std::string, std::string>>;  ///< spellings of left and right, in the order of their ranks

struct BpeOptions {
  bool ignore_merges = false;       ///< a word that is a token becomes that token without merges
  std::int32_t unknown = kNoToken;  ///< stands for bytes without a token; if kNoToken, they are left out
  bool fuse_unknown = false;        ///< neighbouring bytes without a token become one
};

/// A token of a word, and its bytes in the word.
struct WordToken {
  std::int32_t id;
  std::uint32_t begin;
  std::uint32_t end;
};

class Bpe {
 public:
  /// Throws TokenizerError for merges of or into spellings that are not tokens. Of merges of the same pair the last one
  /// applies.
  Bpe(const Vocabulary& vocabulary, const MergeList& merges, const BpeOptions& options);

  /// Splits a word of at most 2^32 − 1 bytes. Overwrites `tokens`.
  void encode(std::vector<WordToken>& tokens, std::string_view word) const;

 private:
  struct Merge {
    std::uint64_t pair;  ///< left id · 2^32 + right id; kFree in a slot without a merge
    std::uint32_t rank;
    std::int32_t id;
  };
  struct Candidate;

  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  static std::uint64_t pair_of(std::int32_t left, std::int32_t right);

  std::size_t slot(std::uint64_t pair) const;
  /// Returns null if the two are not merged.
  const Merge* find(std::int32_t left, std::int32_t right) const;
  void first_tokens(std::vector<WordToken>& tokens, std::string_view word) const;
  void merge_few(std::vector<WordToken>& tokens) const;
  void merge_many(std::vector<WordToken>& tokens) const;

  BpeOptions options_;
  std::array<std::int32_t, 256> byte_ids_{};
  std::vector<Merge> merges_;  ///< hash table: a power of two, at most half of it used
  std::uint64_t factor_ = random_factor();
  int shift_ = 0;
  StringTable words_;  ///< of ignore_merges: the bytes of every token
  std::vector<std::int32_t> word_ids_;
};

/// Encodes the words of a text, and keeps the tokens of words that may occur again.
class WordEncoder {
 public:
  explicit WordEncoder(const Bpe& bpe) : bpe_(bpe) {}

  /// Returns the tokens of a word, valid until the next call.
  std::span<const WordToken> encode(std::string_view word);

 private:
  struct Range {
    std::size_t begin;
    std::size_t size;
  };

  const Bpe& bpe_;
  StringTable words_;
  std::vector<Range> ranges_;      ///< of each word, in tokens_
  std::vector<WordToken> tokens_;  ///< of all words that are kept
  std::vector<WordToken> word_;
};

}  // namespace headgate::tokenize
