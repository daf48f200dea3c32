// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenize/held_text.hpp"
#include "models/tokenize/pre_tokenizer.hpp"
#include "models/tokenize/string_table.hpp"

namespace headgate::tokenize {

/// The token that ends a text, in every trained vocabulary.
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

struct BpeTraining {
  std::int32_t ids = 0;                   ///< of the vocabulary: 256 bytes, merges, kEndOfText and `special`
  std::vector<std::string> special = {};  ///< special tokens besides kEndOfText
  bool bos = false;                       ///< kEndOfText also stands before every text
};

struct TrainedBpe {
  std::string json;      ///< tokenizer.json
  std::int32_t ids = 0;  ///< fewer than asked for if no pair of tokens occurs twice any more
};

/// Learns a byte-level BPE from texts, whose words are those of Qwen 2's pattern. Each merge joins the pair of tokens
/// that occurs most often; of several, the one with the least ids, the left token's first. Counts distinct words, so
/// that memory does not grow with repetitions.
///
/// Ids: the 256 bytes in the order of their characters in spelling_of(), the merges in the order they are learned,
/// kEndOfText, the other special tokens.
class BpeTrainer {
 public:
  /// Bytes of all distinct words together, at most.
  static constexpr std::size_t kMostDistinctBytes = std::size_t{1} << 26;
  /// Bytes of each text that must be UTF-8: what begins so is text.
  static constexpr std::size_t kCheckedBytes = std::size_t{1} << 20;
  /// Longer words are counted in parts of this size, so that a merge never reads much of a text.
  static constexpr std::size_t kWordPart = 1024;
  /// A merge joins a pair that occurs at least so often.
  static constexpr std::int64_t kLeastCount = 2;

  BpeTrainer();

  /// Adds the next part of a text; after Tail::ended, another text begins. Parts may end inside a character. Leaves out
  /// bytes that are not UTF-8. Throws TokenizerError for such bytes among the first kCheckedBytes of a text and for
  /// more than kMostDistinctBytes, and as a PieceCutter does.
  void add(std::string_view part, Tail tail);

  std::size_t distinct_words() const { return counts_.size(); }
  std::size_t left_out() const { return left_out_; }  ///< bytes that are not UTF-8

  /// Returns the tokenizer. Throws TokenizerError for too few ids, no text, and special tokens that are empty, not
  /// UTF-8 or occur twice.
  TrainedBpe train(const BpeTraining& options) const;

 private:
  void cut(std::string_view text, Tail tail);
  void count(std::string_view word);

  SplitStep step_;
  PieceCutter cutter_;
  std::vector<Slice> slices_;
  std::string unfinished_;  ///< the beginning of a character
  std::string word_;        ///< the beginning of a word
  std::size_t done_ = 0;    ///< bytes of the current text before unfinished_
  StringTable words_;
  std::vector<std::int64_t> counts_;  ///< of each word
  std::size_t distinct_bytes_ = 0;
  std::size_t left_out_ = 0;
};

}  // namespace headgate::tokenize
