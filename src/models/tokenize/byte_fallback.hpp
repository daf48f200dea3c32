// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "models/tokenize/vocabulary.hpp"

// Defines byte fallback as in SentencePiece tokenizers: a character without a token is encoded as its UTF-8 bytes. Each
// byte becomes one of the tokens <0x00> to <0xFF>.

namespace headgate::tokenize {

using ByteIds = std::array<std::int32_t, 256>;

/// Returns the ids of the tokens <0x00> to <0xFF>, or nullopt if the vocabulary has none of these tokens. Throws
/// TokenizerError if the vocabulary has only some of them, because then some characters could not be encoded.
std::optional<ByteIds> find_byte_tokens(const Vocabulary& vocabulary);

/// Returns the byte of a token such as <0x0A>, or nullopt for any other spelling.
std::optional<std::uint8_t> byte_of_token(std::string_view spelling);

}  // namespace headgate::tokenize
