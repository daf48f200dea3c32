// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// Declares string functions on UTF-8 with the results of Python's str methods. Each byte that is not valid UTF-8 counts
// as a character.

namespace headgate::jinja {

/// Returns the size in bytes of the first character of `text`. `text` must not be empty.
std::size_t first_bytes(std::string_view text);
/// Returns the number of characters of `text`.
std::int64_t characters_in(std::string_view text);

struct Ends {
  bool left = true, right = true;
};
/// Removes characters from the selected ends of `text`: the characters in `set`, or white space if `set` is null.
std::string_view stripped(std::string_view text, const std::string_view* set, Ends ends);
/// Returns the number of bytes of white space at the beginning of `text`.
std::size_t space_at_front(std::string_view text);

/// Selects which letters with_case() converts to upper case. All other letters are converted to lower case.
/// - upper: all letters.
/// - lower: none.
/// - title: letters that do not follow a letter, as in Python's str.title().
/// - words: letters at the start, after white space, and after one of -([{<, as in Jinja's filter `title`.
/// - capitalize: the first character.
enum class Case { upper, lower, title, words, capitalize };
/// Changes the case of ASCII letters. Throws TemplateError for other letters that have upper and lower case.
std::string with_case(std::string_view text, Case to);

/// Return the offset of the first or last occurrence of `part` in `text`, or npos if there is none. The time is linear
/// in the sum of the sizes.
std::size_t first_place(std::string_view text, std::string_view part);
std::size_t last_place(std::string_view text, std::string_view part);
/// Returns the number of occurrences of `part` that do not overlap. An empty `part` occurs before each character and at
/// the end.
std::int64_t occurrences(std::string_view text, std::string_view part);
/// Replaces `from` by `to` in `text`, at most `most` times. A negative `most` means no limit.
std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t most);

}  // namespace headgate::jinja
