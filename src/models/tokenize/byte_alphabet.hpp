// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

// How vocabularies of byte-level BPE are written: each byte as one visible character. Printable bytes of Latin-1 stand
// for themselves, the others, in ascending order, are U+0100, U+0101, …; a space is thus Ġ (U+0120).

namespace headgate::tokenize {

/// The spelling of `bytes`.
std::string spelling_of(std::string_view bytes);

/// The bytes that `spelling` stands for; empty if one of its characters stands for none.
std::optional<std::string> bytes_of(std::string_view spelling);

}  // namespace headgate::tokenize
