// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headgate::tokenize {

/// Unicode's White_Space.
bool is_white_space(char32_t c);

/// What \w matches in Rust's regular expressions: letters, marks, decimal digits, letter-like numbers, connectors.
bool is_word_character(char32_t c);

/// A mark, of any kind.
bool is_mark(char32_t c);

}  // namespace headgate::tokenize
