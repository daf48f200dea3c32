// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headgate::tokenize {

/// Holds SentencePiece's table of replacements, which is `precompiled_charsmap` in tokenizer.json.
///
/// The binary layout is: the size of a trie in bytes (u32), the trie, the replacements. The trie is a double array of
/// 32-bit units in the layout of Darts-clone. A unit holds three things: the byte that leads to it, whether a key ends
/// there, and the distance to its children. The value of a key is the offset of the key's replacement, a UTF-8 string
/// that ends with a 0 byte.
class Charsmap {
 public:
  /// Parses the table. Throws TokenizerError if the sizes in it are inconsistent, or if the replacements are not UTF-8.
  explicit Charsmap(std::string_view bytes);

  /// Returns the replacement for the shortest key that `text` begins with, or nullopt if there is no such key. Throws
  /// TokenizerError if the trie refers to a unit or a replacement that is out of range. Also throws if a replacement
  /// would begin inside a character.
  std::optional<std::string_view> find(std::string_view text) const;

 private:
  std::uint32_t unit(std::size_t at) const;
  std::string_view replacement(std::size_t at) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

/// Decodes base64 with padding. Throws TokenizerError for invalid input.
std::string decode_base64(std::string_view text);

}  // namespace headgate::tokenize
