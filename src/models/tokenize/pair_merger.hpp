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

/// Two neighbouring tokens.
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

/// Holds counted words as tokens, and merges pairs in them. Counts of pairs and the words that have them are updated
/// where a merge changes them, so that a merge takes time in proportion to its occurrences.
class PairMerger {
 public:
  /// Adds a word that occurs `count` times, as its tokens.
  void add(const std::vector<std::int32_t>& tokens, std::int64_t count);

  /// Returns the pair that occurs most often, and at least `least` ≥ 1 times; of several, the least. Call it after the
  /// last add().
  std::optional<TokenPair> most_frequent(std::int64_t least);

  /// Replaces the pair by `token` in all words, from left to right.
  void merge(TokenPair pair, std::int32_t token);

 private:
  struct Word {
    std::size_t begin;   ///< in tokens_
    std::uint32_t size;  ///< in tokens
    std::int64_t count;
  };
  struct Occurrences {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  ///< words that have had the pair; may have lost it, or occur twice
  };
  /// A pair with its count at some time, which may have changed since.
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

  std::vector<std::int32_t> tokens_;  ///< of all words
  std::vector<Word> words_;
  std::unordered_map<TokenPair, Occurrences, TokenPairHash> pairs_;  ///< with counts above 0
  std::priority_queue<Candidate> queue_;
  std::vector<TokenPair> increased_;  ///< pairs whose counts are not yet in the queue
};

}  // namespace headgate::tokenize
