// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headgate::tokenize {

/// Returns whether a character has the Unicode property White_Space.
bool is_white_space(char32_t c);

/// Returns whether \w of Rust's regular expressions matches a character. It matches letters, marks, decimal digits,
/// letter-like numbers, connectors and joiners.
bool is_word_character(char32_t c);

/// Returns whether a character is a mark, such as a combining accent.
bool is_mark(char32_t c);

/// Returns whether a character has case: it is an uppercase, lowercase or titlecase letter, or has another upper or
/// lower case form.
bool has_case(char32_t c);

}  // namespace headgate::tokenize
