// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <unordered_map>
#include <vector>

#include "models/tokenize/string_table.hpp"

namespace headgate::tokenize {

/// Ids of two neighbouring tokens.
struct TokenPair {
  std::int32_t left, right;

  bool operator==(const TokenPair& other) const = default;
  bool operator<(const TokenPair& other) const { return left != other.left ? left < other.left : right < other.right; }
};

struct TokenPairHash {
  std::uint64_t factor = random_factor();

  std::size_t operator()(const TokenPair& pair) const {
    const std::uint64_t key =
        (std::uint64_t{static_cast<std::uint32_t>(pair.left)} << 32U) | static_cast<std::uint32_t>(pair.right);
    const std::uint64_t product = key * factor;
    return product ^ (product >> 32U);
  }
};

/// Holds words as sequences of tokens, with counts, and merges pairs of tokens in them. Updates the counts of pairs
/// incrementally: a merge visits only words that contain its pair.
class PairMerger {
 public:
  /// Adds a word with the given tokens. The word occurs `count` times.
  void add(const std::vector<std::int32_t>& tokens, std::int64_t count);

  /// Returns the most frequent pair, and among equally frequent pairs the smallest. Returns nullopt if no pair occurs
  /// at least `least` ≥ 1 times. Call it only after the last add().
  std::optional<TokenPair> most_frequent(std::int64_t least);

  /// Replaces the pair by `token` in all words, from left to right.
  void merge(TokenPair pair, std::int32_t token);

 private:
  struct Word {
    std::size_t begin;   ///< index of the word's first token in tokens_
    std::uint32_t size;  ///< number of tokens in the word
    std::int64_t count;
  };
  struct Occurrences {
    std::int64_t count = 0;
    /// Indices of the words that contain the pair or once contained it. An index may occur more than once.
    std::vector<std::uint32_t> words;
  };
  /// A pair and its count at the time when it was queued. The current count may differ.
  struct Candidate {
    std::int64_t count;
    TokenPair pair;

    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : other.pair < pair;
    }
  };
  void merge_in_word(std::uint32_t number, TokenPair pair, std::int32_t token);
  void increase(TokenPair pair, std::uint32_t word);
  void decrease(TokenPair pair, std::uint32_t word);
  void push(TokenPair pair);

  std::vector<std::int32_t> tokens_;  ///< tokens of all words
  std::vector<Word> words_;
  std::unordered_map<TokenPair, Occurrences, TokenPairHash> pairs_;  ///< pairs with a count above 0
  std::priority_queue<Candidate> queue_;
  std::vector<TokenPair> increased_;  ///< pairs whose count has grown, which must be queued again
};

}  // namespace headgate::tokenize
