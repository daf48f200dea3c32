// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenize/normalize.hpp"
#include "models/tokenize/pending_text.hpp"

namespace headgate::tokenize {

/// Describes an added token. Added tokens are found before the text around them is split into words.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< the token must not have word characters directly before or after it
  bool lstrip = false;       ///< the token includes all white space before it
  bool rstrip = false;       ///< the token includes all white space after it
  /// Whether the search uses normal forms: it then looks for the normal form of `content` in the normalized text.
  bool normalized = false;
  bool special = false;  ///< control token such as BOS, which represents no text
};

/// A segment of a text that is split at added tokens: one added token, or the text between two.
struct Segment {
  Span span;
  const AddedToken* token = nullptr;  ///< null if the segment is text
  More more = More::none;             ///< More::may_follow if the next segment continues this text
};

/// A set of added tokens to search for. The search goes from left to right and takes the longest match at each
/// position.
class AddedTokens {
 public:
  /// Prepares the search for the normal forms of `tokens`. All tokens must have the same value of `normalized`. Special
  /// tokens must come first. Throws TokenizerError if a normal form is empty.
  explicit AddedTokens(std::vector<AddedToken> tokens = {}, const NormalForm& form = {});

 private:
  friend class AddedTokenSearch;

  struct Entry {
    std::string content;
    AddedToken token;
  };
  /// The longest token that a text begins with, or null. If `undecided` is set, more text could give a longer token.
  struct Longest {
    const Entry* entry = nullptr;
    bool undecided = false;
  };
  Longest longest(std::string_view text) const;

  std::vector<Entry> entries_;  ///< sorted by content
  std::array<bool, 256> begins_{};
  bool takes_space_before_ = false;  ///< whether any token has lstrip
};

/// Splits a text at added tokens. The text may arrive in several parts. Text at the end of a part is held back while a
/// later part could change where it is split.
class AddedTokenSearch {
 public:
  /// `tokens` must outlive the object. If `special_as_text` is set, special tokens are treated as text.
  AddedTokenSearch(const AddedTokens& tokens, bool special_as_text)
      : tokens_(tokens), special_as_text_(special_as_text) {}

  /// Adds the next part of a text. More::none marks the last part. Overwrites `segments` with the new segments, which
  /// later parts cannot change.
  void next(std::vector<Segment>& segments, std::string_view part, More more);

  /// Returns the text that the spans of the segments refer to. The view is valid until the next call of next(), and
  /// only while the part passed to next() is valid.
  std::string_view view() const { return pending_.view(); }
  /// Returns the offset of view() in the whole text, in bytes.
  std::size_t begin() const { return pending_.begin(); }

 private:
  /// Searches for the next position where a token may begin. Takes the token there, or skips the position. Returns
  /// false if the choice depends on later text.
  bool step(std::vector<Segment>& segments, More more);
  void add_text(std::vector<Segment>& segments, std::size_t end, More more);
  void drop_emitted(More more);

  const AddedTokens& tokens_;
  bool special_as_text_;
  PendingText pending_;
  std::size_t search_begin_ = 0;  ///< offset in view() where the search continues
  std::size_t emitted_end_ = 0;   ///< offset in view() where the text begins that is not in a segment yet
  bool text_open_ = false;        ///< whether the last segment is text that may continue in the next segment
};

}  // namespace headgate::tokenize
