// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "models/tokenize/byte_fallback.hpp"
#include "models/tokenize/string_table.hpp"
#include "models/tokenize/vocabulary.hpp"
#include "models/tokenize/word_model.hpp"

// Splits a word into tokens so that the sum of their scores, which are log probabilities, is largest. Uses the Viterbi
// algorithm (Kudo 2018, https://arxiv.org/abs/1804.10959).

namespace headgate::tokenize {

struct UnigramOptions {
  /// Id for consecutive characters without tokens; kNoToken means that they are dropped.
  std::int32_t unknown = kNoToken;
  double unknown_score = 0.0;  ///< score of a character without a token
  /// Encodes characters without a token as byte tokens <0x00> to <0xFF>, if they exist.
  bool byte_fallback = false;
};

class Unigram final : public WordModel {
 public:
  /// `scores` has one score per id. NaN marks ids that are never found in a text. Throws TokenizerError in these cases:
  /// - The spellings have more than 8 MiB in total.
  /// - byte_fallback is set, and only some of the byte tokens exist.
  Unigram(const Vocabulary& vocabulary, const std::vector<double>& scores, const UnigramOptions& options);

  void encode(std::vector<WordToken>& tokens, std::string_view word) const override;

 private:
  /// An edge of the trie of all spellings: it leads from a parent node to the child `node`.
  struct Edge {
    std::uint64_t key;  ///< parent · 256 + byte; kFree in an empty slot
    std::uint32_t node;
  };
  /// The best split of a word's beginning into tokens. Holds its total score and its last token.
  struct Best {
    double score = 0.0;
    std::uint32_t begin = 0;  ///< offset of the last token in the word
    std::int32_t id = kNoToken;
    bool reached = false;
  };

  static constexpr std::uint64_t kFree = ~std::uint64_t{0};

  void insert(std::string_view spelling, std::int32_t id);
  std::size_t slot(std::uint64_t key) const;
  /// Returns the child of `node` for a byte, or 0 if there is none. Node 0 is the root, which is never a child.
  std::uint32_t next(std::uint32_t node, char byte) const;
  std::vector<Best> search(std::string_view word) const;
  /// Appends the tokens of word[begin, end) from last to first. These bytes are characters without tokens.
  void add_unknown(std::vector<WordToken>& tokens, std::string_view word, std::uint32_t begin, std::uint32_t end) const;

  UnigramOptions options_;
  std::vector<double> scores_;
  std::optional<ByteIds> byte_ids_;
  std::vector<Edge> edges_;  ///< hash table with 2^n slots, at most half full
  std::uint64_t factor_ = random_factor();
  int shift_ = 0;
  std::vector<std::int32_t> ids_;  ///< for each node, the id of the token that ends there, or kNoToken
};

}  // namespace headgate::tokenize
