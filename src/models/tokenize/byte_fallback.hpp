// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "models/tokenize/vocabulary.hpp"

// Tokenizers of SentencePiece write a character that has no token as its bytes, with the tokens <0x00> to <0xFF>.

namespace headgate::tokenize {

using ByteIds = std::array<std::int32_t, 256>;

/// Returns the ids of the tokens <0x00> to <0xFF>; nothing if the vocabulary has none of them. Throws TokenizerError if
/// it has only some: characters would then be split in ways that no decoder joins.
std::optional<ByteIds> find_byte_tokens(const Vocabulary& vocabulary);

/// Returns the byte that a token such as <0x0A> stands for.
std::optional<std::uint8_t> byte_of_token(std::string_view spelling);

}  // namespace headgate::tokenize
