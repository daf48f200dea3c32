// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenize/charsmap.hpp"
#include "models/tokenize/pending_text.hpp"

namespace headgate::tokenize {

/// Bytes [begin, end) of a text.
struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;

  friend bool operator==(const Span&, const Span&) = default;
};

/// Settings of normalization. The steps are applied in the order of the members.
struct NormalForm {
  bool form_c = false;  ///< whether to apply Unicode's normalization form C (NFC)
  std::string space;    ///< text that replaces each space (U+0020); if empty, spaces are kept
  std::string prefix;   ///< text that is put before every non-empty text
  /// SentencePiece's table of replacements, which is used instead of NFC; null if there is none. A grapheme cluster is
  /// replaced as a whole if it has at most 5 bytes and begins with a key of the table. In other clusters, each
  /// character that begins with a key is replaced. A table and a prefix cannot be combined.
  std::shared_ptr<const Charsmap> charsmap = nullptr;

  bool changes_nothing() const { return !form_c && space.empty() && prefix.empty() && charsmap == nullptr; }
};

/// Holds the normal form of a text. Maps positions in the normal form to the source text.
class Normalized {
 public:
  /// Normalizes `source`, which must be valid UTF-8 and must outlive the object. Set `begins` to false if `source`
  /// continues another text and thus gets no prefix.
  Normalized(std::string_view source, const NormalForm& form, bool begins = true);

  std::string_view text() const { return changes_.empty() ? source_ : text_; }
  /// Returns the source bytes from which a part of the normal form was made. A composed character was made from the
  /// bytes of all its components.
  Span source_of(Span part) const;

 private:
  friend class NormalizedParts;

  /// A replacement of source bytes. The normal form has `size` bytes from the offset `begin` on. They replace
  /// `source_size` bytes of the source from the offset `source_begin` on.
  struct Change {
    std::size_t begin;
    std::size_t size;
    std::size_t source_begin;
    std::size_t source_size;
  };

  /// Appends the unchanged bytes source[same, begin) to the output. Then appends `by` in place of source[begin, end).
  /// Sets `same` to `end`.
  void change(std::size_t& same, std::size_t begin, std::size_t end, std::string_view by);
  /// Normalizes the character at `at`, together with the following characters that may compose with it. Returns the
  /// offset after the last of them.
  std::size_t take_composed(std::size_t& same, std::size_t at, const std::string& space);
  /// Replaces the grapheme cluster at `at` by the table's entry for the whole cluster. If the cluster is long or has no
  /// entry, replaces each of its characters by the character's entry. Returns the offset after the cluster.
  std::size_t take_mapped(std::size_t& same, std::size_t at, const NormalForm& form);
  /// Replaces source[begin, end) by its entry in the table, or keeps it if there is none. Then replaces the spaces in
  /// the result.
  void map(std::size_t& same, std::size_t begin, std::size_t end, const NormalForm& form);

  /// Returns the source bytes from which the bytes `part` of the normal form were made. `changes` must be sorted by
  /// position.
  template <class Changes>
  static Span source_of(const Changes& changes, Span part);

  std::string_view source_;
  std::string text_;
  std::vector<Change> changes_;  ///< all replacements, sorted by position
};

/// Normalizes texts that arrive in parts.
class NormalizedParts {
 public:
  /// `form` must outlive the object.
  explicit NormalizedParts(const NormalForm& form) : form_(form) {}

  /// Selects which steps of the NormalForm are applied to a text.
  enum class AppliedSteps { nothing, all_but_prefix, all };
  /// Begins a new text.
  void begin(AppliedSteps steps);
  /// Takes the next part of the text. Returns the next bytes of the normal form that later text cannot change. The
  /// result is valid until the next call of next(), as long as `part` is valid.
  std::string_view next(std::string_view part, More more);

  /// Returns the source bytes from which a part of the normal form was made. Must not be called for bytes that forget()
  /// has dropped.
  Span source_of(Span part) const;
  /// Drops the mapping to the source for bytes of the normal form before `at`.
  void forget(std::size_t at);

 private:
  const NormalForm& form_;
  bool normalized_ = false;
  bool begins_ = false;  ///< whether the prefix still has to be added
  PendingText pending_;
  Normalized last_{{}, {}};                 ///< normal form that the last call of next() made
  std::size_t size_ = 0;                    ///< size in bytes of the normal form so far
  std::deque<Normalized::Change> changes_;  ///< replacements that forget() has kept, sorted by position
};

}  // namespace headgate::tokenize
