// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace headgate::tokenize {

struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 0;  ///< size in UTF-8; 0 if there is no valid character
};

/// Returns the UTF-8 character at the beginning of `text`. Returns bytes = 0 if there is no valid one.
CodePoint first_code_point(std::string_view text);

/// Returns the UTF-8 character at the end of `text`. Returns bytes = 0 if there is no valid one.
CodePoint last_code_point(std::string_view text);

/// Returns the size of the longest prefix of `text` that is valid UTF-8.
std::size_t well_formed_prefix_size(std::string_view text);

/// Returns the size of the longest prefix of `text` in which no valid character begins.
std::size_t ill_formed_prefix_size(std::string_view text);

/// Returns the number of bytes at the end of `text` that may be the beginning of a character: 0 to 3.
std::size_t incomplete_suffix_size(std::string_view text);

/// Appends a character to `text` in UTF-8. `value` must not be a surrogate.
void append_utf8(std::string& text, char32_t value);

}  // namespace headgate::tokenize
