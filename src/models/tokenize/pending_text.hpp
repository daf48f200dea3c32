// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace headgate::tokenize {

/// Tells whether more text may follow the current part of a text. With `none`, the text ends with this part.
enum class More { may_follow, none };

/// Throws TokenizerError if a word has more than 64 MiB. Words are limited because a whole word is held in memory, with
/// up to one token per byte.
void check_word_size(std::size_t bytes);

/// Buffers the end of a text that arrives in parts, as long as later text may change its tokens. A part is not copied
/// if the buffer is empty.
class PendingText {
 public:
  /// Adds a part. Returns true if the caller should search the pending text, false if the caller should wait for more.
  /// After a search without a decision, returns false until the number of undecided bytes has doubled. A long word thus
  /// takes O(n) time in total. Throws TokenizerError if the pending text and the part have more than 64 MiB.
  bool add(std::string_view part, More more);

  /// Returns the pending text with the added part. The view is valid until the next call of add(), as long as the part
  /// is valid.
  std::string_view view() const { return view_; }
  /// Returns the offset of view() in the whole text, in bytes.
  std::size_t begin() const { return begin_; }

  /// Drops the bytes of view() before the offset `from`. From the offset `undecided` on, tokens still depend on later
  /// text.
  void drop_before(std::size_t from, std::size_t undecided);
  /// Drops all text. The next part begins a new text.
  void reset();

 private:
  std::string bytes_;
  std::string_view view_;
  std::size_t bytes_to_drop_ = 0;  ///< number of leading bytes of bytes_ that the next add() removes
  std::size_t begin_ = 0;
  std::size_t next_begin_ = 0;  ///< value that begin() returns after the next add()
  std::size_t least_size_ = 0;  ///< minimum size of view() for which add() returns true
};

}  // namespace headgate::tokenize
