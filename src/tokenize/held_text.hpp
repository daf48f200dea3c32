// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace headgate::tokenize {

/// Whether a text may go on behind the part of it that is there.
enum class Tail { open, ended };

/// Throws TokenizerError for a word of more bytes than are encoded: it has to be in memory with all tokens that it
/// begins as.
void check_word_size(std::size_t bytes);

/// A text that comes in parts, of which the end is held while what follows may change its meaning. Parts that need
/// nothing before them are not copied.
class HeldText {
 public:
  /// Adds a part. Returns false where too little has come since the last look: the text that is looked at doubles, so
  /// that a long word is searched a few times and not once for every part. Throws as check_word_size does.
  bool add(std::string_view part, Tail tail);

  /// What is held and the part that was added. Valid until the next call of add(), and no longer than the part.
  std::string_view view() const { return view_; }
  /// The place of its first byte in the whole text.
  std::size_t begin() const { return begin_; }

  /// Forgets the bytes of view() before `from`. Those from `undecided` on have to wait for more of the text.
  void keep(std::size_t from, std::size_t undecided);
  /// Forgets everything: the next part begins another text.
  void reset();

 private:
  std::string bytes_;
  std::string_view view_;
  std::size_t forgotten_ = 0;  ///< bytes at the front of bytes_ that the next add() removes
  std::size_t begin_ = 0, begin_after_ = 0;
  std::size_t wanted_ = 0;  ///< bytes of the view that are worth a look
};

}  // namespace headgate::tokenize
