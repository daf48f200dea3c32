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

/// Steps of normalization, in the order of application.
struct NormalForm {
  bool form_c = false;  ///< Unicode's normalization form C
  std::string space;    ///< replacement of each space (U+0020); if empty, spaces stay
  std::string prefix;   ///< string that is put before every non-empty text
  /// Table of replacements, used in place of form C; null for none. A grapheme cluster of up to 5 bytes is replaced if
  /// it begins with a key. Otherwise, each of its characters that begins with a key is replaced. Cannot be combined
  /// with a prefix, because a normalized text may be empty.
  std::shared_ptr<const Charsmap> charsmap = nullptr;

  bool changes_nothing() const { return !form_c && space.empty() && prefix.empty() && charsmap == nullptr; }
};

/// Holds the normal form of a text and maps its bytes back to the source.
class Normalized {
 public:
  /// `source` must be well-formed UTF-8 and outlive the object. If `begins` is false, `source` continues another text
  /// and gets no prefix.
  Normalized(std::string_view source, const NormalForm& form, bool begins = true);

  std::string_view text() const { return changes_.empty() ? source_ : text_; }
  /// Returns the source bytes of a part of the normal form. A composed character comes from all bytes of its
  /// components.
  Span source_of(Span part) const;

 private:
  friend class NormalizedParts;

  /// A replacement: `size` bytes of the normal form that come from `source_size` bytes of the source.
  struct Change {
    std::size_t begin;
    std::size_t size;
    std::size_t source_begin;
    std::size_t source_size;
  };

  /// Appends source[same, begin) to the output unchanged, then `by` in place of source[begin, end). Sets `same`, the
  /// offset of the first source byte that is not copied yet, to `end`.
  void change(std::size_t& same, std::size_t begin, std::size_t end, std::string_view by);
  /// Normalizes the character at `at` together with the following ones that may compose with it. Returns the offset
  /// after them.
  std::size_t take_composed(std::size_t& same, std::size_t at, const std::string& space);
  /// Replaces the grapheme cluster at `at`, or else each of its characters. Returns the offset after the cluster.
  std::size_t take_mapped(std::size_t& same, std::size_t at, const NormalForm& form);
  /// Replaces source[begin, end) by its entry in the table, if any, and replaces the spaces in the result.
  void map(std::size_t& same, std::size_t begin, std::size_t end, const NormalForm& form);

  /// Maps `part` back to the source. `changes` must be sorted by position.
  template <class Changes>
  static Span source_of(const Changes& changes, Span part);

  std::string_view source_;
  std::string text_;
  std::vector<Change> changes_;  ///< sorted by position
};

/// Normalizes texts that come in parts.
class NormalizedParts {
 public:
  /// `form` must outlive the object.
  explicit NormalizedParts(const NormalForm& form) : form_(form) {}

  /// Steps of a NormalForm that are applied to a text.
  enum class Wanted { nothing, all_but_prefix, all };
  /// Begins a new text.
  void begin(Wanted wanted);
  /// Takes the next part of the text. Returns the next bytes of the normal form that further text cannot change. The
  /// result is valid until the next call of next(), and only while the part is valid.
  std::string_view next(std::string_view part, Tail tail);

  /// Returns the source bytes of a part of the normal form. `part` must not include bytes that forget() dropped.
  Span source_of(Span part) const;
  /// Drops the mapping to the source for the bytes of the normal form before `at`.
  void forget(std::size_t at);

 private:
  const NormalForm& form_;
  bool normalized_ = false;
  bool begins_ = false;  ///< true if the prefix has not been added yet
  HeldText held_;
  Normalized last_{{}, {}};                 ///< normal form of the last part
  std::size_t size_ = 0;                    ///< bytes of the normal form so far
  std::deque<Normalized::Change> changes_;  ///< sorted by position
};

}  // namespace headgate::tokenize
