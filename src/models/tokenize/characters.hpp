// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headgate::tokenize {

/// Returns whether a character has Unicode's White_Space.
bool is_white_space(char32_t c);

/// Returns whether \w of Rust's regular expressions matches: letters, marks, decimal digits, letter-like numbers,
/// connectors.
bool is_word_character(char32_t c);

/// Returns whether a character is a mark of any kind.
bool is_mark(char32_t c);

/// Returns whether a character is a letter with a case, or another case belongs to it.
bool has_case(char32_t c);

}  // namespace headgate::tokenize
