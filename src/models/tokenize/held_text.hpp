// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace headgate::tokenize {

/// Whether a text may continue after the part at hand.
enum class Tail { open, ended };

/// Throws TokenizerError for a word of more than 64 MiB, which would have to be in memory with a token for each byte.
void check_word_size(std::size_t bytes);

/// Holds the end of a text that comes in parts, as long as what follows may change its tokens. Copies a part only if
/// text before it is held.
class HeldText {
 public:
  /// Adds a part. Returns false if the caller should wait for more: a text is searched again only once its undecided
  /// bytes have doubled, so that a long word takes O(n) time. Throws as check_word_size does, for what is held and the
  /// part together.
  bool add(std::string_view part, Tail tail);

  /// Returns the held text and the added part, valid until the next call of add() and while the part is.
  std::string_view view() const { return view_; }
  /// Returns the position of view() in the whole text.
  std::size_t begin() const { return begin_; }

  /// Forgets the bytes of view() before `from`. Those from `undecided` on are not decided before more text arrives.
  void keep(std::size_t from, std::size_t undecided);
  /// Forgets everything: the next part begins another text.
  void reset();

 private:
  std::string bytes_;
  std::string_view view_;
  std::size_t forgotten_ = 0;  ///< bytes at the front of bytes_ that the next add() removes
  std::size_t begin_ = 0, begin_after_ = 0;
  std::size_t wanted_ = 0;  ///< size of view() from which add() returns true
};

}  // namespace headgate::tokenize
