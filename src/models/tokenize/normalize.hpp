// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenize/held_text.hpp"

namespace headgate::tokenize {

/// Bytes [begin, end) of a text.
struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;

  friend bool operator==(const Span&, const Span&) = default;
};

/// Holds a text in Unicode's normalization form C, and where its bytes come from.
class Normalized {
 public:
  /// `source`: well-formed UTF-8, which must outlive the object. `form_c` false: the text is `source` itself.
  Normalized(std::string_view source, bool form_c);

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
  explicit NormalizedParts(bool form_c) : form_c_(form_c) {}

  /// Begins another text. normalized: in form C if the constructor's form_c is set; else unchanged.
  void begin(bool normalized);
  /// Takes the next part of the text. Returns the next bytes of the normal form that no continuation changes, valid
  /// until the next call of next() and while the part is.
  std::string_view next(std::string_view part, Tail tail);

  /// As Normalized::source_of. `part` must be after the bytes that forget() dropped.
  Span source_of(Span part) const;
  /// Drops the source positions of the bytes before `at` in the normal form.
  void forget(std::size_t at);

 private:
  bool form_c_;
  bool normalized_ = false;
  HeldText held_;
  Normalized form_{{}, false};              ///< of the last part
  std::size_t size_ = 0;                    ///< of the normal form
  std::deque<Normalized::Change> changes_;  ///< in order
};

}  // namespace headgate::tokenize
