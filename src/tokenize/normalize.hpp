// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace headgate::tokenize {

/// Bytes [begin, end) of a text.
struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;

  friend bool operator==(const Span&, const Span&) = default;
};

/// A text in Unicode's normalization form C, and where its bytes come from.
class Normalized {
 public:
  /// `source`: well-formed UTF-8, which must outlive the object. `form_c` false: the text is `source` itself.
  Normalized(std::string_view source, bool form_c);

  std::string_view text() const { return changes_.empty() ? source_ : text_; }
  /// The bytes of the source that became `part` of the text. Characters that were composed come from all bytes of their
  /// parts.
  Span source_of(Span part) const;

 private:
  /// `size` bytes of the text that come from `source_size` others.
  struct Change {
    std::size_t begin;
    std::size_t size;
    std::size_t source_begin;
    std::size_t source_size;
  };

  std::string_view source_;
  std::string text_;
  std::vector<Change> changes_;  ///< in order
};

}  // namespace headgate::tokenize
