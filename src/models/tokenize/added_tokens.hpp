// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenize/held_text.hpp"
#include "models/tokenize/normalize.hpp"

namespace headgate::tokenize {

/// Describes a token that is found in the text before anything is merged.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< found only between characters that are not part of a word
  bool lstrip = false;       ///< takes all white space before it
  bool rstrip = false;       ///< takes all white space after it
  bool normalized = false;   ///< its normal form is searched in the normal form of the text
  bool special = false;      ///< a control token such as BOS, not a part of the text
};

/// A part of a text: a token that was found there, or text between such tokens.
struct Part {
  Span span;
  const AddedToken* token = nullptr;  ///< null: text
  Tail tail = Tail::ended;            ///< open: the next part continues this text
};

/// Searches for added tokens from left to right, and takes the longest at each position.
class AddedTokens {
 public:
  /// `tokens` are all normalized or all not, special ones first. Searches for their normal form.
  explicit AddedTokens(std::vector<AddedToken> tokens = {}, const NormalForm& form = {});

 private:
  friend class AddedTokenSearch;

  struct Entry {
    std::string content;
    AddedToken token;
  };
  /// The longest token with which a text begins, or null. undecided: a longer one may match once the text continues.
  struct Longest {
    const Entry* entry = nullptr;
    bool undecided = false;
  };
  Longest longest(std::string_view text) const;

  std::vector<Entry> entries_;  ///< sorted by content
  std::array<bool, 256> begins_{};
  bool takes_space_before_ = false;  ///< one of them has lstrip
};

/// Splits texts at added tokens. A text may come in parts: text is held back while a continuation may change the split.
class AddedTokenSearch {
 public:
  /// `tokens` must outlive the object. `special_as_text`: special tokens are left in the text.
  AddedTokenSearch(const AddedTokens& tokens, bool special_as_text)
      : tokens_(tokens), special_as_text_(special_as_text) {}

  /// Takes the next part of a text; after Tail::ended, another text begins. Overwrites `parts` with the parts that are
  /// final.
  void next(std::vector<Part>& parts, std::string_view part, Tail tail);

  /// Returns the text that spans refer to, valid until the next call of next() and while the part is.
  std::string_view view() const { return held_.view(); }
  /// Returns the position of view() in the text.
  std::size_t begin() const { return held_.begin(); }

 private:
  /// Takes the next token or skips a position where one might begin. Returns false if the position is undecided.
  bool step(std::vector<Part>& parts, Tail tail);
  void add_text(std::vector<Part>& parts, std::size_t end, Tail tail);
  void forget(Tail tail);

  const AddedTokens& tokens_;
  bool special_as_text_;
  HeldText held_;
  std::size_t at_ = 0;    ///< in view(): where the search continues
  std::size_t done_ = 0;  ///< in view(): everything before it is in parts
  bool open_ = false;     ///< the last part is text with Tail::open
};

}  // namespace headgate::tokenize
