// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// Functions of strings as Python's str has them, on UTF-8. A byte that is not UTF-8 counts as a character.

namespace headgate::jinja {

/// Returns the bytes of the character at the front of `text`, which is not empty.
std::size_t first_bytes(std::string_view text);
/// Returns the number of characters.
std::int64_t characters_in(std::string_view text);

struct Ends {
  bool left = true, right = true;
};
/// Removes characters from the ends of `text`: those of `set`, or white space if it is null.
std::string_view stripped(std::string_view text, const std::string_view* set, Ends ends);
/// Returns how many bytes of white space `text` begins with.
std::size_t space_at_front(std::string_view text);

enum class Case { upper, lower, title, capitalize };
/// Changes the case. Throws Refusal for letters with a case beyond ASCII, whose mappings are long.
std::string with_case(std::string_view text, Case to);

/// Returns `text` with `from` replaced by `to`, at most `most` times; below 0: always.
std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t most);

}  // namespace headgate::jinja
