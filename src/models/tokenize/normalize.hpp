// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenize/charsmap.hpp"
#include "models/tokenize/held_text.hpp"

namespace headgate::tokenize {

/// Bytes [begin, end) of a text.
struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;

  friend bool operator==(const Span&, const Span&) = default;
};

/// What normalization does to a text, in this order.
struct NormalForm {
  bool form_c = false;  ///< Unicode's normalization form C
  std::string space;    ///< replaces each space (U+0020); empty: spaces stay
  std::string prefix;   ///< stands before a text that is not empty
  /// Replaces, in place of form C, grapheme clusters of up to 5 bytes that begin with a key, and else characters that
  /// do; null: nothing. Not together with a prefix, because a text may become empty.
  std::shared_ptr<const Charsmap> charsmap = nullptr;

  bool changes_nothing() const { return !form_c && space.empty() && prefix.empty() && charsmap == nullptr; }
};

/// Holds the normal form of a text, and where its bytes come from.
class Normalized {
 public:
  /// `source`: well-formed UTF-8, which must outlive the object. `begins` false: the text continues another one, so no
  /// prefix stands before it.
  Normalized(std::string_view source, const NormalForm& form, bool begins = true);

  std::string_view text() const { return changes_.empty() ? source_ : text_; }
  /// Returns the bytes of the source that became `part` of the text. A composed character comes from all bytes of its
  /// parts.
  Span source_of(Span part) const;

 private:
  friend class NormalizedParts;

  /// `size` bytes of the text that come from `source_size` bytes of the source.
  struct Change {
    std::size_t begin;
    std::size_t size;
    std::size_t source_begin;
    std::size_t source_size;
  };

  /// Replaces source[begin, end) by `by`. `same`: where the text that is not copied yet begins.
  void change(std::size_t& same, std::size_t begin, std::size_t end, std::string_view by);
  /// Normalizes the character at `at` and the marks that may join it, and returns where they end.
  std::size_t take_composed(std::size_t& same, std::size_t at, const std::string& space);
  /// Replaces the grapheme cluster at `at`, or its characters, and returns where it ends.
  std::size_t take_mapped(std::size_t& same, std::size_t at, const NormalForm& form);
  /// Replaces source[begin, end) by what the table says, if it says anything.
  void map(std::size_t& same, std::size_t begin, std::size_t end, const NormalForm& form);

  /// `changes` in order.
  template <class Changes>
  static Span source_of(const Changes& changes, Span part);

  std::string_view source_;
  std::string text_;
  std::vector<Change> changes_;  ///< in order
};

/// Normalizes texts that come in parts.
class NormalizedParts {
 public:
  /// `form` must outlive the object.
  explicit NormalizedParts(const NormalForm& form) : form_(form) {}

  /// What of the form a text gets.
  enum class Wanted { nothing, all_but_prefix, all };
  /// Begins another text.
  void begin(Wanted wanted);
  /// Takes the next part of the text. Returns the next bytes of the normal form that no continuation changes, valid
  /// until the next call of next() and while the part is.
  std::string_view next(std::string_view part, Tail tail);

  /// As Normalized::source_of. `part` must be after the bytes that forget() dropped.
  Span source_of(Span part) const;
  /// Drops the source positions of the bytes before `at` in the normal form.
  void forget(std::size_t at);

 private:
  const NormalForm& form_;
  bool normalized_ = false;
  bool begins_ = false;  ///< the prefix is still to come
  HeldText held_;
  Normalized last_{{}, {}};                 ///< of the last part
  std::size_t size_ = 0;                    ///< of the normal form
  std::deque<Normalized::Change> changes_;  ///< in order
};

}  // namespace headgate::tokenize
