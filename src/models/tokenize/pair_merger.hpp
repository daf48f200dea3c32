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

/// Holds words as tokens, with counts, and merges pairs of tokens in them. The counts of pairs are updated
/// incrementally: a merge visits only words that contain its pair.
class PairMerger {
 public:
  /// Adds a word, given as its tokens, that occurs `count` times.
  void add(const std::vector<std::int32_t>& tokens, std::int64_t count);

  /// Returns the most frequent pair, or nullopt if no pair occurs at least `least` ≥ 1 times. Ties go to the smaller
  /// pair. Must be called after the last add().
  std::optional<TokenPair> most_frequent(std::int64_t least);

  /// Replaces the pair by `token` in all words, from left to right.
  void merge(TokenPair pair, std::int32_t token);

 private:
  struct Word {
    std::size_t begin;   ///< offset in tokens_
    std::uint32_t size;  ///< number of tokens
    std::int64_t count;
  };
  struct Occurrences {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  ///< indices of words that contained the pair at some time; may repeat
  };
  /// A pair with its count when it was queued. The count may be out of date.
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
  std::vector<TokenPair> increased_;  ///< pairs whose count grew and that must be queued again
};

}  // namespace headgate::tokenize
