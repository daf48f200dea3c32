// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "models/tokenize/string_table.hpp"
#include "models/tokenize/word_model.hpp"

namespace headgate::tokenize {

/// Encodes words of a text. Caches the tokens of short words.
class WordEncoder {
 public:
  explicit WordEncoder(const WordModel& model) : model_(model) {}

  /// Returns the tokens of a word. They are valid until the next call.
  std::span<const WordToken> encode(std::string_view word);

 private:
  struct Range {
    std::size_t begin;
    std::size_t size;
  };

  const WordModel& model_;
  StringTable words_;
  std::vector<Range> ranges_;      ///< for each cached word, the range of its tokens in tokens_
  std::vector<WordToken> tokens_;  ///< tokens of all cached words, one word after another
  std::vector<WordToken> word_;
};

}  // namespace headgate::tokenize
