// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

// Converts between bytes and their spelling in vocabularies of byte-level BPE, where each byte is one visible
// character. The spelling of a printable byte of Latin-1 is the byte's own character. The other bytes are spelled
// U+0100, U+0101, … in ascending order. A space is thus Ġ (U+0120).

namespace headgate::tokenize {

/// Returns the spelling of `bytes`.
std::string spelling_of(std::string_view bytes);

/// Returns the bytes that `spelling` represents. Returns nullopt if one of its characters represents no byte.
std::optional<std::string> bytes_of(std::string_view spelling);

}  // namespace headgate::tokenize
