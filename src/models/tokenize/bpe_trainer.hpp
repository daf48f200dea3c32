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

/// Special token that ends a text; every trained vocabulary has it.
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

struct BpeTraining {
  std::int32_t ids = 0;                   ///< size of the vocabulary: 256 bytes, merges, kEndOfText and `special`
  std::vector<std::string> special = {};  ///< special tokens besides kEndOfText
  bool bos = false;                       ///< also puts kEndOfText before every text, as BOS
};

struct TrainedBpe {
  std::string json;      ///< contents of tokenizer.json
  std::int32_t ids = 0;  ///< size of the vocabulary; less than requested if no pair occurs twice any more
};

/// Learns a byte-level BPE from texts, which Qwen 2's pattern splits into words. Each merge joins the most frequent
/// pair of tokens. Ties go to the least left id, then to the least right id. Each distinct word is stored once with a
/// count, so memory does not grow with repetitions.
///
/// Ids are assigned in this order: the 256 bytes, sorted by their characters in spelling_of(); the merges, as they are
/// learned; kEndOfText; the other special tokens.
class BpeTrainer {
 public:
  /// Largest total size of all distinct words, in bytes.
  static constexpr std::size_t kMostDistinctBytes = std::size_t{1} << 26;
  /// Number of bytes at the start of each text that must be valid UTF-8. Invalid bytes after them are skipped.
  static constexpr std::size_t kCheckedBytes = std::size_t{1} << 20;
  /// Largest size of a word in bytes. Longer words are split into pieces of this size, which bounds the work per merge.
  static constexpr std::size_t kWordPart = 1024;
  /// Smallest number of occurrences of a pair for which a merge is learned.
  static constexpr std::int64_t kLeastCount = 2;

  BpeTrainer();

  /// Adds the next part of a text; Tail::ended marks the last one. Parts may end inside a character. Skips invalid
  /// UTF-8. Throws TokenizerError if the first kCheckedBytes of a text have invalid UTF-8, or if the distinct words
  /// exceed kMostDistinctBytes. Also throws as PieceCutter::next() does.
  void add(std::string_view part, Tail tail);

  std::size_t distinct_words() const { return counts_.size(); }
  std::size_t left_out() const { return left_out_; }  ///< number of bytes skipped because they are not UTF-8

  /// Returns the trained tokenizer. Throws TokenizerError:
  /// - if no text was added
  /// - if the number of ids is out of range
  /// - if a special token is empty, not UTF-8 or given twice
  /// - if a special token has the spelling of a byte or of a learned merge
  TrainedBpe train(const BpeTraining& options) const;

 private:
  void cut(std::string_view text, Tail tail);
  void count(std::string_view word);

  SplitStep step_;
  PieceCutter cutter_;
  std::vector<Slice> slices_;
  std::string unfinished_;  ///< incomplete character at the end of the last part
  std::string word_;        ///< incomplete word at the end of the last part
  std::size_t done_ = 0;    ///< bytes of the current text before unfinished_
  StringTable words_;
  std::vector<std::int64_t> counts_;  ///< number of occurrences of each word
  std::size_t distinct_bytes_ = 0;
  std::size_t left_out_ = 0;
};

}  // namespace headgate::tokenize
