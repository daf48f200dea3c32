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

// Splits one word by byte-pair encoding (BPE). The word starts as one token per byte or character. Each step merges the
// neighbouring pair of lowest rank, until no pair can be merged. Among pairs of equal rank, the leftmost comes first.

namespace headgate::tokenize {

using MergeList =
    std::vector<std::pair<std::string, std::string>>;  ///< spellings (left, right) in the order of the merge ranks

/// A merge of two tokens into a third one.
struct RankedMerge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t id;
  std::uint32_t rank;  ///< merges of lower rank are applied first
};

/// Converts merges of spellings to merges of ids. Throws TokenizerError if a left, right or joined spelling is not a
/// token.
std::vector<RankedMerge> ranked_merges(const Vocabulary& vocabulary, const MergeList& merges);

struct BpeOptions {
  bool ignore_merges = false;       ///< encodes a word that is itself a token as that token, without merges
  std::int32_t unknown = kNoToken;  ///< id for text that has no token; if kNoToken, such text is dropped
  bool fuse_unknown = false;        ///< encodes a run of characters without tokens as one unknown token
  bool characters = false;          ///< starts from characters; if false, from bytes as spelled by spelling_of()
  bool byte_fallback = false;  ///< encodes a character without a token as the tokens <0x00> to <0xFF>, if those exist
};

class Bpe final : public WordModel {
 public:
  /// If several merges have the same pair, the last one applies. Throws TokenizerError if byte_fallback is set and only
  /// some of the tokens <0x00> to <0xFF> exist.
  Bpe(const Vocabulary& vocabulary, const std::vector<RankedMerge>& merges, const BpeOptions& options);

  void encode(std::vector<WordToken>& tokens, std::string_view word) const override;
  std::size_t spelled_bytes(const WordToken& token) const override;
  bool cuts() const override { return cuts_; }
  bool may_cut(char32_t before, char32_t after) const override;

 private:
  struct Merge {
    std::uint64_t pair;  ///< left id · 2^32 + right id; kFree if the entry is empty
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
  /// Returns the merge of two tokens, or null if there is none.
  const Merge* find(std::int32_t left, std::int32_t right) const;
  /// Returns the id of a character's token, or kNoToken.
  std::int32_t id_of(char32_t character) const;
  std::int32_t id_of(std::string_view character) const;
  void first_tokens(std::vector<WordToken>& tokens, std::string_view word) const;
  void merge_few(std::vector<WordToken>& tokens) const;
  void merge_many(std::vector<WordToken>& tokens) const;

  BpeOptions options_;
  ByteIds byte_ids_{};  ///< id of each byte's token, or kNoToken
  std::array<std::int32_t, 128> ascii_ids_{};
  StringTable characters_;  ///< non-ASCII characters that have a token
  std::vector<std::int32_t> character_ids_;
  std::vector<Merge> merges_;  ///< hash table; its size is a power of two, at most half full
  std::uint64_t factor_ = random_factor();
  int shift_ = 0;
  bool cuts_ = false;
  CharacterPairs joined_;  ///< pairs of neighbouring characters that some merge may join
  StringTable words_;      ///< bytes of every token; filled only for ignore_merges
  std::vector<std::int32_t> word_ids_;
  std::vector<std::uint32_t> token_bytes_;  ///< bytes that each id spells; empty unless unknown text is dropped
};

}  // namespace headgate::tokenize
