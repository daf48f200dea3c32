// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace headgate::tokenize {

/// Tells whether more text may follow the current part (open), or the text ends with it (ended).
enum class Tail { open, ended };

/// Throws TokenizerError for a word of more than 64 MiB. The limit exists because a word is held in memory as a whole,
/// with up to one token per byte.
void check_word_size(std::size_t bytes);

/// Buffers the end of a text that comes in parts, for as long as further text may change its tokens. If nothing is
/// buffered, a new part is not copied.
class HeldText {
 public:
  /// Adds a part. Returns false if the caller should not search yet, but wait for more text. Searches are repeated only
  /// once the undecided bytes have doubled, so a long word takes O(n) time. Throws as check_word_size() does if the
  /// held text and the part together are too long.
  bool add(std::string_view part, Tail tail);

  /// Returns the held text followed by the added part. The view is valid until the next call of add(), and only while
  /// the part is valid.
  std::string_view view() const { return view_; }
  /// Returns the byte offset of view() in the whole text.
  std::size_t begin() const { return begin_; }

  /// Drops the bytes of view() before `from`. The tokens of the bytes from `undecided` on depend on further text.
  void keep(std::size_t from, std::size_t undecided);
  /// Drops all text. The next part begins another text.
  void reset();

 private:
  std::string bytes_;
  std::string_view view_;
  std::size_t forgotten_ = 0;  ///< number of bytes at the front of bytes_ that the next add() removes
  std::size_t begin_ = 0, begin_after_ = 0;
  std::size_t wanted_ = 0;  ///< smallest size of view() for which add() returns true
};

}  // namespace headgate::tokenize
