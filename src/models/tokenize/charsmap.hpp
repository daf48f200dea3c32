// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headgate::tokenize {

/// Holds SentencePiece's table of replacements, `precompiled_charsmap` of a tokenizer.json.
///
/// Its bytes are: u32 the bytes of a trie, the trie, the replacements. The trie is a double array of u32 in the layout
/// of Darts-clone: a unit has the byte that leads to it, whether a key ends there, and the distance to its children.
/// The replacements are UTF-8, each ended by a 0; a key's value is where its own begins.
class Charsmap {
 public:
  /// Throws TokenizerError if the sizes contradict each other, or the replacements are not UTF-8.
  explicit Charsmap(std::string_view bytes);

  /// Returns the replacement of the shortest key at the front of `text`; nothing if there is none. Throws
  /// TokenizerError if the trie leads out of its units or of the replacements, or into the middle of a character.
  std::optional<std::string_view> find(std::string_view text) const;

 private:
  std::uint32_t unit(std::size_t at) const;
  std::string_view replacement(std::size_t at) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

/// Decodes base64 with padding. Throws TokenizerError for anything else.
std::string decode_base64(std::string_view text);

}  // namespace headgate::tokenize
