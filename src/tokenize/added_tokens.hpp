// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenize/held_text.hpp"
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
  Tail tail = Tail::ended;            ///< of text, open: it may go on
};

/// Looks for added tokens: from left to right, the longest at each place.
class AddedTokens {
 public:
  /// `tokens` of one kind, normalized or not, special ones first. `form_c`: they are looked for in form C.
  explicit AddedTokens(std::vector<AddedToken> tokens = {}, bool form_c = false);

 private:
  friend class AddedTokenSearch;

  struct Entry {
    std::string content;
    AddedToken token;
  };
  /// What a text begins with: the longest token, null if there is none; undecided: what follows may make it longer.
  struct Longest {
    const Entry* entry = nullptr;
    bool undecided = false;
  };
  Longest longest(std::string_view text) const;

  std::vector<Entry> entries_;  ///< by content
  std::array<bool, 256> begins_{};
  bool takes_space_before_ = false;  ///< one of them has lstrip
};

/// Splits texts at added tokens. A text may come in parts, which are split as far as no continuation changes it.
class AddedTokenSearch {
 public:
  /// `tokens` must outlive the object. `special_as_text`: special tokens are left in the text.
  AddedTokenSearch(const AddedTokens& tokens, bool special_as_text)
      : tokens_(tokens), special_as_text_(special_as_text) {}

  /// Takes a part of a text, ended: the last one, after which another text begins. `parts` = what is decided now.
  void next(std::vector<Part>& parts, std::string_view part, Tail tail);

  /// What spans are of; valid until the next call of next(), and no longer than the part.
  std::string_view view() const { return held_.view(); }
  /// The place of its first byte in the text.
  std::size_t begin() const { return held_.begin(); }

 private:
  /// Takes the next token, or goes past a place where one may begin. False: what stands there is undecided.
  bool step(std::vector<Part>& parts, Tail tail);
  void add_text(std::vector<Part>& parts, std::size_t end, Tail tail);
  void forget(Tail tail);

  const AddedTokens& tokens_;
  bool special_as_text_;
  HeldText held_;
  std::size_t at_ = 0;    ///< of view(): where the search goes on
  std::size_t done_ = 0;  ///< of view(): everything before it is in parts
  bool open_ = false;     ///< text has been given that may go on
};

}  // namespace headgate::tokenize
