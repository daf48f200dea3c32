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

/// Describes an added token. Added tokens are found before the rest of the text is split into words.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< matches only if no adjacent character is part of a word
  bool lstrip = false;       ///< includes all white space before the token
  bool rstrip = false;       ///< includes all white space after the token
  bool normalized = false;   ///< searches the normal form of `content` in the normalized text
  bool special = false;      ///< a control token such as BOS, which represents no text
};

/// One result of splitting a text: an added token, or text between added tokens.
struct Part {
  Span span;
  const AddedToken* token = nullptr;  ///< null if the part is text
  Tail tail = Tail::ended;            ///< Tail::open if the next part continues this text
};

/// A set of added tokens to search for, from left to right. At each position the longest match is taken.
class AddedTokens {
 public:
  /// Prepares the search for the normal forms of `tokens`. `normalized` must be the same for all tokens, and special
  /// tokens must come first. Throws TokenizerError if a normal form is empty.
  explicit AddedTokens(std::vector<AddedToken> tokens = {}, const NormalForm& form = {});

 private:
  friend class AddedTokenSearch;

  struct Entry {
    std::string content;
    AddedToken token;
  };
  /// The longest token that a text begins with; null if there is none. `undecided`: a longer token may match once more
  /// text arrives.
  struct Longest {
    const Entry* entry = nullptr;
    bool undecided = false;
  };
  Longest longest(std::string_view text) const;

  std::vector<Entry> entries_;  ///< sorted by content
  std::array<bool, 256> begins_{};
  bool takes_space_before_ = false;  ///< true if any token has lstrip
};

/// Splits texts at added tokens. A text may come in several parts; the search holds back text whose split depends on
/// later parts.
class AddedTokenSearch {
 public:
  /// `tokens` must outlive the object. If `special_as_text` is set, special tokens remain in the text.
  AddedTokenSearch(const AddedTokens& tokens, bool special_as_text)
      : tokens_(tokens), special_as_text_(special_as_text) {}

  /// Takes the next part of a text; Tail::ended marks the last one. Overwrites `parts` with the results that further
  /// text cannot change.
  void next(std::vector<Part>& parts, std::string_view part, Tail tail);

  /// Returns the text to which spans refer. The view is valid until the next call of next(), and only while the part
  /// passed to next() is valid.
  std::string_view view() const { return held_.view(); }
  /// Returns the byte offset of view() in the whole text.
  std::size_t begin() const { return held_.begin(); }

 private:
  /// Takes the next token, or skips a position where none matches. Returns false if the match depends on further text.
  bool step(std::vector<Part>& parts, Tail tail);
  void add_text(std::vector<Part>& parts, std::size_t end, Tail tail);
  void forget(Tail tail);

  const AddedTokens& tokens_;
  bool special_as_text_;
  HeldText held_;
  std::size_t at_ = 0;    ///< offset in view() where the search continues
  std::size_t done_ = 0;  ///< offset in view() up to which all text is in `parts`
  bool open_ = false;     ///< true if the last part is text with Tail::open
};

}  // namespace headgate::tokenize
