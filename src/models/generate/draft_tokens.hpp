// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headgate::generate {

/// Guesses the next tokens of a text. Searches for the latest earlier occurrence of the text's last tokens, and guesses
/// the tokens that follow it. This is prompt lookup decoding, https://github.com/apoorvumang/prompt-lookup-decoding.
class DraftTokens {
 public:
  explicit DraftTokens(std::span<const std::int32_t> text) : text_(text.begin(), text.end()) {}

  /// Adds the next token of the text.
  void add(std::int32_t id) { text_.push_back(id); }
  /// Returns at most `most` guesses. Returns none if the last kFewest tokens do not occur earlier in the text.
  std::vector<std::int32_t> next(std::int64_t most) const;

 private:
  /// Searches for the last kMost tokens, then for fewer, down to kFewest.
  static constexpr std::ptrdiff_t kMost = 3, kFewest = 2;

  std::vector<std::int32_t> text_;
};

}  // namespace headgate::generate
