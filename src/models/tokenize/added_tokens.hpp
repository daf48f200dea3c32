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
  /// Whether the token is searched for in the normalized text. Its own normal form is then searched for, not `content`.
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
  /// Prepares the search for the normal forms of `tokens`. `normalized` must have the same value in all tokens. Special
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

/// Splits a text at added tokens. The text may arrive in several parts. Holds back text at the end of a part if a later
/// part can change how it is split.
class AddedTokenSearch {
 public:
  /// `tokens` must outlive the object. If `special_as_text` is set, special tokens are treated as text.
  AddedTokenSearch(const AddedTokens& tokens, bool special_as_text)
      : tokens_(tokens), special_as_text_(special_as_text) {}

  /// Takes the next part of a text. More::none marks the last part. Overwrites `segments` with the segments that later
  /// text cannot change.
  void next(std::vector<Segment>& segments, std::string_view part, More more);

  /// Returns the text to which spans refer. The view is valid until the next call of next(), as long as the
  /// part passed to next() is valid.
  std::string_view view() const { return pending_.view(); }
  /// Returns the offset of view() in the whole text, in bytes.
  std::size_t begin() const { return pending_.begin(); }

 private:
  /// Takes one token, or skips one position if no token begins there. Returns false if this depends on later text.
  bool step(std::vector<Segment>& segments, More more);
  void add_text(std::vector<Segment>& segments, std::size_t end, More more);
  void drop_emitted(More more);

  const AddedTokens& tokens_;
  bool special_as_text_;
  PendingText pending_;
  std::size_t search_begin_ = 0;  ///< offset in view() where the search continues
  std::size_t emitted_end_ = 0;   ///< offset in view() up to which the text is in `segments`
  bool text_open_ = false;        ///< whether the last segment is text that the next segment continues
};

}  // namespace headgate::tokenize
