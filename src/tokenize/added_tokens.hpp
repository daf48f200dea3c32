// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenize/normalize.hpp"

namespace headgate::tokenize {

/// A token that is found in the text before anything is merged.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< only between characters that are part of no word
  bool lstrip = false;       ///< with all white space before it
  bool rstrip = false;       ///< with all white space after it
  bool normalized = false;   ///< its normal form is looked for in the normal form of the text
  bool special = false;      ///< a sign to the model, not a part of the text
};

/// A part of a text: a token that was found there, or text between such tokens.
struct Part {
  Span span;
  const AddedToken* token = nullptr;  ///< null: text
};

/// Looks for added tokens: from left to right, the longest at each place.
class AddedTokens {
 public:
  /// `tokens` of one kind, normalized or not, special ones first. `form_c`: they are looked for in form C.
  explicit AddedTokens(std::vector<AddedToken> tokens = {}, bool form_c = false);

  /// The parts of `text`, overwriting `parts`. `special_as_text`: special tokens are left in the text.
  void split(std::vector<Part>& parts, std::string_view text, bool special_as_text) const;

 private:
  struct Entry {
    std::string content;
    AddedToken token;
  };

  /// The longest that `text` begins with; null if there is none.
  const Entry* longest(std::string_view text) const;

  std::vector<Entry> entries_;  ///< by content
  std::array<bool, 256> begins_{};
};

}  // namespace headgate::tokenize
