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

#include "models/tokenize/byte_fallback.hpp"
#include "models/tokenize/character_pairs.hpp"
#include "models/tokenize/string_table.hpp"
#include "models/tokenize/vocabulary.hpp"
#include "models/tokenize/word_model.hpp"

// Splits one word by byte-pair encoding. It starts with one token a byte or a character. Then it merges, again and
// again, the neighbouring pair whose merge has the least rank (the leftmost of equal ones), until no pair has a merge.

namespace headgate::tokenize {

using MergeList =
    std::vector<std::pair<std::string, std::string>>;  ///< spellings of left and right, in the order of their ranks

/// A merge of two tokens into a third one.
struct RankedMerge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t id;
  std::uint32_t rank;  ///< merges of less rank come first
};

/// Returns the merges of a list. Throws TokenizerError for merges of or into spellings that are not tokens.
std::vector<RankedMerge> ranked_merges(const Vocabulary& vocabulary, const MergeList& merges);

struct BpeOptions {
  bool ignore_merges = false;       ///< a word that is a token becomes that token without merges
  std::int32_t unknown = kNoToken;  ///< stands for what has no token; if kNoToken, that is left out
  bool fuse_unknown = false;        ///< neighbouring bytes or characters without a token become one
  bool characters = false;          ///< a word starts as characters, not as bytes in the alphabet of spelling_of()
  bool byte_fallback = false;       ///< characters without a token become the tokens <0x00> to <0xFF>, if those exist
};

class Bpe final : public WordModel {
 public:
  /// Of merges of the same pair the last one applies. Throws TokenizerError for byte tokens that are not complete.
  Bpe(const Vocabulary& vocabulary, const std::vector<RankedMerge>& merges, const BpeOptions& options);

  void encode(std::vector<WordToken>& tokens, std::string_view word) const override;
  std::size_t spelled_bytes(const WordToken& token) const override;
  bool cuts() const override { return cuts_; }
  bool may_cut(char32_t before, char32_t after) const override;

 private:
  struct Merge {
    std::uint64_t pair;  ///< left id · 2^32 + right id; kFree in a slot without a merge
    std::uint32_t rank;
    std::int32_t id;
  };
  struct Candidate;

  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  static std::uint64_t pair_of(std::int32_t left, std::int32_t right);

  void read_bytes(const Vocabulary& vocabulary);
  void read_characters(const Vocabulary& vocabulary);
  void keep_words(const Vocabulary& vocabulary);
  void measure_tokens(const Vocabulary& vocabulary);
  void find_cuts(const Vocabulary& vocabulary, const std::vector<RankedMerge>& merges);

  std::size_t slot(std::uint64_t pair) const;
  /// Returns null if the two are not merged.
  const Merge* find(std::int32_t left, std::int32_t right) const;
  /// Returns the id of a character's token, or kNoToken.
  std::int32_t id_of(char32_t character) const;
  std::int32_t id_of(std::string_view character) const;
  void first_tokens(std::vector<WordToken>& tokens, std::string_view word) const;
  void merge_few(std::vector<WordToken>& tokens) const;
  void merge_many(std::vector<WordToken>& tokens) const;

  BpeOptions options_;
  ByteIds byte_ids_{};  ///< tokens of bytes; kNoToken where there is none
  std::array<std::int32_t, 128> ascii_ids_{};
  StringTable characters_;  ///< those beyond ASCII that have a token
  std::vector<std::int32_t> character_ids_;
  std::vector<Merge> merges_;  ///< hash table: a power of two, at most half of it used
  std::uint64_t factor_ = random_factor();
  int shift_ = 0;
  bool cuts_ = false;
  CharacterPairs joined_;  ///< pairs of characters between which a merge may join two tokens
  StringTable words_;      ///< of ignore_merges: the bytes of every token
  std::vector<std::int32_t> word_ids_;
  std::vector<std::uint32_t> token_bytes_;  ///< of each id; empty unless text without a token is left out
};

}  // namespace headgate::tokenize
