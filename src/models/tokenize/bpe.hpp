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

// Splits a word into tokens by byte-pair encoding (BPE). At first, each byte or character of the word is one token.
// Each step merges the neighbouring pair of lowest rank, and of equal ranks the leftmost pair. The last step leaves no
// pair that can be merged.

namespace headgate::tokenize {

/// Pairs of spellings (left, right), in the order of their ranks.
using MergeList = std::vector<std::pair<std::string, std::string>>;

/// A merge of two tokens into a third one.
struct RankedMerge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t id;
  std::uint32_t rank;  ///< merges of lower rank are applied first
};

/// Converts merges of spellings to merges of ids. Throws TokenizerError if the left, the right or the joined spelling
/// is not a token.
std::vector<RankedMerge> ranked_merges(const Vocabulary& vocabulary, const MergeList& merges);

struct BpeOptions {
  bool ignore_merges = false;  ///< encodes a word as one token, without merges, if the vocabulary has the word
  /// Id of the token that replaces text without a token. kNoToken means that such text is dropped.
  std::int32_t unknown = kNoToken;
  bool fuse_unknown = false;  ///< encodes consecutive characters without tokens as one unknown token
  /// Whether the smallest tokens are characters. Otherwise they are bytes, spelled as spelling_of() spells them.
  bool characters = false;
  bool byte_fallback = false;  ///< encodes a character without a token as byte tokens <0x00> to <0xFF>, if they exist
};

class Bpe final : public WordModel {
 public:
  /// Prepares the encoding. If several merges join the same pair, only the last one applies. Throws TokenizerError if
  /// byte_fallback is set and only some of the tokens <0x00> to <0xFF> exist.
  Bpe(const Vocabulary& vocabulary, const std::vector<RankedMerge>& merges, const BpeOptions& options);

  void encode(std::vector<WordToken>& tokens, std::string_view word) const override;
  std::size_t spelled_bytes(const WordToken& token) const override;
  bool cuts() const override { return cuts_; }
  bool may_cut(char32_t before, char32_t after) const override;

 private:
  struct Merge {
    std::uint64_t pair;  ///< (left id · 2^32 + right id), or kFree in an empty slot of the hash table
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
  /// Returns the merge of two tokens, or null if they cannot merge.
  const Merge* find(std::int32_t left, std::int32_t right) const;
  /// Returns the id of the token that a character has, or kNoToken.
  std::int32_t id_of(char32_t character) const;
  std::int32_t id_of(std::string_view character) const;
  void first_tokens(std::vector<WordToken>& tokens, std::string_view word) const;
  void merge_few(std::vector<WordToken>& tokens) const;
  void merge_many(std::vector<WordToken>& tokens) const;

  BpeOptions options_;
  ByteIds byte_ids_{};  ///< for each byte, the id of its token, or kNoToken
  std::array<std::int32_t, 128> ascii_ids_{};
  StringTable characters_;  ///< characters beyond ASCII that have a token
  std::vector<std::int32_t> character_ids_;
  std::vector<Merge> merges_;  ///< hash table with 2^n slots, at most half full
  std::uint64_t factor_ = random_factor();
  int shift_ = 0;
  bool cuts_ = false;
  CharacterPairs joined_;  ///< pairs of neighbouring characters that a merge can join
  StringTable words_;      ///< bytes of every token; filled only if ignore_merges is set
  std::vector<std::int32_t> word_ids_;
  /// Number of bytes that each id represents. Needed and filled only if text without a token is dropped.
  std::vector<std::uint32_t> token_bytes_;
};

}  // namespace headgate::tokenize
