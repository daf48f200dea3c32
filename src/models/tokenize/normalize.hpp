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

/// Settings of normalization. The steps are applied in the order of the members.
struct NormalForm {
  bool form_c = false;  ///< applies Unicode's normalization form C (NFC)
  std::string space;    ///< replaces each space (U+0020); if empty, spaces stay
  std::string prefix;   ///< is put before every non-empty text
  /// SentencePiece's table of replacements, used instead of NFC; may be null. A grapheme cluster of up to 5 bytes is
  /// replaced if it begins with a key of the table. Otherwise, each of its characters that begins with a key is
  /// replaced. Cannot be combined with a prefix, because a normalized text may be empty.
  std::shared_ptr<const Charsmap> charsmap = nullptr;

  bool changes_nothing() const { return !form_c && space.empty() && prefix.empty() && charsmap == nullptr; }
};

/// Holds the normal form of a text, and maps positions in it back to the source.
class Normalized {
 public:
  /// `source` must be well-formed UTF-8 and outlive the object. If `begins` is false, `source` continues another text
  /// and gets no prefix.
  Normalized(std::string_view source, const NormalForm& form, bool begins = true);

  std::string_view text() const { return changes_.empty() ? source_ : text_; }
  /// Returns the source bytes of a part of the normal form. For a composed character, these are the bytes of all its
  /// components.
  Span source_of(Span part) const;

 private:
  friend class NormalizedParts;

  /// A replacement: `size` bytes of the normal form from `begin` on replace `source_size` bytes of the source from
  /// `source_begin` on.
  struct Change {
    std::size_t begin;
    std::size_t size;
    std::size_t source_begin;
    std::size_t source_size;
  };

  /// Copies source[same, begin) to the output, then appends `by`, which replaces source[begin, end). Sets `same` to
  /// `end`.
  void change(std::size_t& same, std::size_t begin, std::size_t end, std::string_view by);
  /// Normalizes the character at `at` together with the following characters that may compose with it. Returns the
  /// offset after these characters.
  std::size_t take_composed(std::size_t& same, std::size_t at, const std::string& space);
  /// Replaces the grapheme cluster at `at` by its entry in the table. If the cluster is long or has no entry, looks up
  /// its characters one by one. Returns the offset after the cluster.
  std::size_t take_mapped(std::size_t& same, std::size_t at, const NormalForm& form);
  /// Replaces source[begin, end) by its entry in the table, if any, and replaces the spaces in the result.
  void map(std::size_t& same, std::size_t begin, std::size_t end, const NormalForm& form);

  /// Returns the bytes of the source that became bytes `part` of the normalized text. `changes` must be sorted by
  /// position.
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

  /// Selects the steps of the NormalForm to apply to a text.
  enum class Wanted { nothing, all_but_prefix, all };
  /// Begins a new text.
  void begin(Wanted wanted);
  /// Takes the next part of the text. Returns the next bytes of the normal form that further text cannot change. The
  /// result is valid until the next call of next(), and only while the part is valid.
  std::string_view next(std::string_view part, Tail tail);

  /// Returns the source bytes of a part of the normal form. forget() must not have dropped any of this part.
  Span source_of(Span part) const;
  /// Drops the mapping to the source for the bytes of the normal form before `at`.
  void forget(std::size_t at);

 private:
  const NormalForm& form_;
  bool normalized_ = false;
  bool begins_ = false;  ///< true until the prefix has been added
  HeldText held_;
  Normalized last_{{}, {}};                 ///< normal form that the latest next() returned, with its changes
  std::size_t size_ = 0;                    ///< total size of the normal form so far, in bytes
  std::deque<Normalized::Change> changes_;  ///< sorted by position
};

}  // namespace headgate::tokenize
