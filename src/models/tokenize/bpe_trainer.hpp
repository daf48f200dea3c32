// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenize/pending_text.hpp"
#include "models/tokenize/pre_tokenizer.hpp"
#include "models/tokenize/string_table.hpp"

namespace headgate::tokenize {

/// Special token that ends a text. Every trained vocabulary has it.
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

struct BpeTraining {
  std::int32_t ids = 0;                   ///< number of tokens: 256 bytes, merges, kEndOfText and `special`
  std::vector<std::string> special = {};  ///< special tokens besides kEndOfText
  bool bos = false;                       ///< whether kEndOfText is also put before every text, as BOS
};

struct TrainedBpe {
  std::string json;      ///< contents of tokenizer.json
  std::int32_t ids = 0;  ///< size of the vocabulary; smaller than requested if no further pair occurred twice
};

/// Learns a byte-level BPE from texts, split into words by Qwen 2's pattern. Each merge joins the most frequent pair of
/// tokens. Ties go to the smallest left id, then to the smallest right id. Stores each distinct word once, with a
/// count, so repetitions take no memory.
///
/// Ids are assigned in this order:
/// - the 256 bytes, sorted by their characters in spelling_of()
/// - the merges, in the order in which they are learned
/// - kEndOfText
/// - the other special tokens
class BpeTrainer {
 public:
  /// Maximum total size of all distinct words in bytes.
  static constexpr std::size_t kMostDistinctBytes = std::size_t{1} << 26;
  /// Number of bytes at the start of each text that must be valid UTF-8. Invalid bytes after that are skipped.
  static constexpr std::size_t kCheckedBytes = std::size_t{1} << 20;
  /// Maximum size of a word in bytes. Longer words are cut into pieces of this size, which limits the work per merge.
  static constexpr std::size_t kWordPart = 1024;
  /// Minimum number of occurrences of a pair that is merged.
  static constexpr std::int64_t kLeastCount = 2;

  BpeTrainer();

  /// Adds the next part of a text. More::none marks the last part of the text. A part may end within a character. Skips
  /// invalid UTF-8, but throws TokenizerError in these cases:
  /// - There is invalid UTF-8 in the first kCheckedBytes of a text.
  /// - The total size of the distinct words exceeds kMostDistinctBytes.
  /// - PieceCutter::next() throws.
  void add(std::string_view part, More more);

  std::size_t distinct_words() const { return counts_.size(); }
  std::size_t left_out() const { return left_out_; }  ///< number of bytes that were skipped because they are not UTF-8

  /// Learns the merges and returns the tokenizer. Throws TokenizerError in these cases:
  /// - No text was added.
  /// - The number of ids is out of range.
  /// - A special token is empty, is not UTF-8, or is given twice.
  /// - A special token has the spelling of a byte or of a learned merge.
  TrainedBpe train(const BpeTraining& options) const;

 private:
  void cut(std::string_view text, More more);
  void count(std::string_view word);

  SplitStep step_;
  PieceCutter cutter_;
  std::vector<Slice> slices_;
  std::string unfinished_;            ///< unfinished character at the end of the last part
  std::string word_;                  ///< unfinished word at the end of the last part
  std::size_t unfinished_begin_ = 0;  ///< offset of the bytes in unfinished_ within the current text
  StringTable words_;
  std::vector<std::int64_t> counts_;  ///< for each word, the number of its occurrences
  std::size_t distinct_bytes_ = 0;
  std::size_t left_out_ = 0;
};

}  // namespace headgate::tokenize
