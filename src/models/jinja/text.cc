// SPDX-License-Identifier: Apache-2.0
#include "models/jinja/text.hpp"

#include <algorithm>
#include <cstring>

#include "models/jinja/value.hpp"
#include "models/tokenize/characters.hpp"
#include "models/tokenize/utf8.hpp"

namespace headgate::jinja {
namespace {

bool is_space(char32_t c) { return tokenize::is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

/// Returns the size in bytes of the first character of `text` if strip() would remove the character, otherwise 0. If
/// `front` is false, examines the last character instead.
std::size_t removable(std::string_view text, bool front, const std::string_view* set) {
  if (text.empty()) return 0;
  const tokenize::CodePoint c = front ? tokenize::first_code_point(text) : tokenize::last_code_point(text);
  if (c.bytes == 0) return 0;
  const std::string_view character = front ? text.substr(0, c.bytes) : text.substr(text.size() - c.bytes);
  const bool removed = set == nullptr ? is_space(c.value) : set->find(character) != std::string_view::npos;
  return removed ? c.bytes : 0;
}

constexpr char kCaseBit = 'a' - 'A';
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }

}  // namespace

std::size_t first_bytes(std::string_view text) {
  return std::max<std::size_t>(tokenize::first_code_point(text).bytes, 1);
}

std::int64_t characters_in(std::string_view text) {
  std::int64_t count = 0;
  for (; !text.empty(); ++count) text.remove_prefix(first_bytes(text));
  return count;
}

std::string_view stripped(std::string_view text, const std::string_view* set, Ends ends) {
  while (ends.left) {
    const std::size_t bytes = removable(text, true, set);
    if (bytes == 0) break;
    text.remove_prefix(bytes);
  }
  while (ends.right) {
    const std::size_t bytes = removable(text, false, set);
    if (bytes == 0) break;
    text.remove_suffix(bytes);
  }
  return text;
}

std::size_t space_at_front(std::string_view text) {
  return text.size() - stripped(text, nullptr, {.left = true, .right = false}).size();
}

std::string with_case(std::string_view text, Case to) {
  constexpr std::string_view kBeforeWords = "-([{<";
  std::string out;
  bool in_word = false, begins_word = true;
  while (!text.empty()) {
    const std::size_t bytes = first_bytes(text);
    const char c = text.front();
    if (bytes > 1) {
      const char32_t value = tokenize::first_code_point(text).value;
      if (tokenize::has_case(value)) raise_error("changing the case of letters beyond ASCII is not supported");
      out += text.substr(0, bytes);
      in_word = false;
    } else {
      const bool raise = to == Case::upper || (to == Case::title && !in_word) || (to == Case::words && begins_word) ||
                         (to == Case::capitalize && out.empty());
      if (raise) {
        out += is_lower(c) ? static_cast<char>(c - kCaseBit) : c;
      } else {
        out += is_upper(c) ? static_cast<char>(c + kCaseBit) : c;
      }
      in_word = is_upper(c) || is_lower(c);
    }
    begins_word = kBeforeWords.find(c) != std::string_view::npos || space_at_front(text.substr(0, bytes)) > 0;
    text.remove_prefix(bytes);
  }
  return out;
}

std::size_t first_place(std::string_view text, std::string_view part) {
  // Uses memmem(), because std::string_view::find takes quadratic time on repetitive texts.
  const void* found = memmem(text.data(), text.size(), part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::size_t last_place(std::string_view text, std::string_view part) {
  const std::string mirrored(text.rbegin(), text.rend());
  const std::size_t at = first_place(mirrored, std::string(part.rbegin(), part.rend()));
  return at == std::string_view::npos ? at : text.size() - at - part.size();
}

std::int64_t occurrences(std::string_view text, std::string_view part) {
  if (part.empty()) return characters_in(text) + 1;
  std::int64_t count = 0;
  for (std::size_t at = first_place(text, part); at != std::string_view::npos; at = first_place(text, part)) {
    text.remove_prefix(at + part.size());
    ++count;
  }
  return count;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t most) {
  std::string out;
  while (most != 0) {
    if (from.empty()) {  // an empty `from` matches before every character and at the end
      out += to;
      if (text.empty()) return out;
      const std::size_t bytes = first_bytes(text);
      out += text.substr(0, bytes);
      text.remove_prefix(bytes);
    } else {
      const std::size_t at = first_place(text, from);
      if (at == std::string_view::npos) break;
      out += text.substr(0, at);
      out += to;
      text.remove_prefix(at + from.size());
    }
    most -= most > 0 ? 1 : 0;
  }
  out += text;
  return out;
}

}  // namespace headgate::jinja
