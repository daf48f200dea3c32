// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

// Converts between bytes and the spelling of byte-level BPE vocabularies, which write each byte as one visible
// character. Printable bytes of Latin-1 are written as themselves. The other bytes are written, in ascending order, as
// U+0100, U+0101, …; a space is thus Ġ (U+0120).

namespace headgate::tokenize {

/// Returns the spelling of `bytes`.
std::string spelling_of(std::string_view bytes);

/// Returns the bytes that `spelling` represents, or nullopt if one of its characters represents no byte.
std::optional<std::string> bytes_of(std::string_view spelling);

}  // namespace headgate::tokenize
