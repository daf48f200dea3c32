// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/word_encoder.hpp"

#include <cstdint>

namespace headgate::tokenize {
namespace {

/// Maximum size in bytes of a cached word. Longer words rarely occur again.
constexpr std::size_t kKeptWord = 32;
constexpr std::int32_t kKeptWords = 1 << 16;  ///< maximum number of cached words per text

}  // namespace

std::span<const WordToken> WordEncoder::encode(std::string_view word) {
  if (word.size() > kKeptWord) {
    model_.encode(word_, word);
    return word_;
  }
  if (const std::int32_t number = words_.find(word); number != StringTable::kAbsent) {
    const Range& range = ranges_[static_cast<std::size_t>(number)];
    return {tokens_.data() + range.begin, range.size};
  }
  model_.encode(word_, word);
  if (words_.size() < kKeptWords) {
    words_.insert(word);
    ranges_.push_back({tokens_.size(), word_.size()});
    tokens_.insert(tokens_.end(), word_.begin(), word_.end());
  }
  return word_;
}

}  // namespace headgate::tokenize
