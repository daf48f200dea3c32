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

// Splits a word into the tokens of the largest sum of scores, which are log probabilities, by the Viterbi algorithm
// (Kudo 2018, https://arxiv.org/abs/1804.10959).

namespace headgate::tokenize {

struct UnigramOptions {
  std::int32_t unknown = kNoToken;  ///< stands for neighbouring characters without a token; if kNoToken, left out
  double unknown_score = 0.0;       ///< of each such character
  bool byte_fallback = false;       ///< such characters become the tokens <0x00> to <0xFF>, if those exist
};

class Unigram final : public WordModel {
 public:
  /// `scores`: of each id; NaN for ids that are never found in a text. Throws TokenizerError for spellings of more than
  /// 8 MiB in total, and for byte tokens that are not complete.
  Unigram(const Vocabulary& vocabulary, const std::vector<double>& scores, const UnigramOptions& options);

  void encode(std::vector<WordToken>& tokens, std::string_view word) const override;

 private:
  /// An edge of the trie that holds the spellings: the byte after those that lead to `node`.
  struct Edge {
    std::uint64_t key;  ///< node · 256 + byte; kFree in a slot without an edge
    std::uint32_t node;
  };
  /// The end of the best tokens of the word up to a position.
  struct Best {
    double score = 0.0;
    std::uint32_t begin = 0;  ///< of the last token
    std::int32_t id = kNoToken;
    bool reached = false;
  };

  static constexpr std::uint64_t kFree = ~std::uint64_t{0};

  void insert(std::string_view spelling, std::int32_t id);
  std::size_t slot(std::uint64_t key) const;
  /// Returns the node after a byte, or 0, the root, to which no edge leads.
  std::uint32_t next(std::uint32_t node, char byte) const;
  std::vector<Best> search(std::string_view word) const;
  /// Appends the tokens of text in which no character has one, from the last to the first.
  void add_unknown(std::vector<WordToken>& tokens, std::string_view word, std::uint32_t begin, std::uint32_t end) const;

  UnigramOptions options_;
  std::vector<double> scores_;
  std::optional<ByteIds> byte_ids_;
  std::vector<Edge> edges_;  ///< hash table: a power of two, at most half of it used
  std::uint64_t factor_ = random_factor();
  int shift_ = 0;
  std::vector<std::int32_t> ids_;  ///< of each node; kNoToken where no spelling ends
};

}  // namespace headgate::tokenize
