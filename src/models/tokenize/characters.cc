// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/characters.hpp"

#include <utf8proc.h>

namespace headgate::tokenize {
namespace {

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

/// Returns whether a character is a letter in a circle or square. Its Unicode category is symbol, not letter, but \w
/// matches it.
bool is_enclosed_letter(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

}  // namespace

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word_character(char32_t c) {
  constexpr char32_t kNonJoiner = 0x200C, kJoiner = 0x200D;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return is_mark(c) || is_enclosed_letter(c) || c == kNonJoiner || c == kJoiner;
  }
}

bool is_mark(char32_t c) {
  const auto of = category(c);
  return of == UTF8PROC_CATEGORY_MN || of == UTF8PROC_CATEGORY_MC || of == UTF8PROC_CATEGORY_ME;
}

bool has_case(char32_t c) {
  const auto of = category(c);
  const auto point = static_cast<utf8proc_int32_t>(c);
  return of == UTF8PROC_CATEGORY_LU || of == UTF8PROC_CATEGORY_LL || of == UTF8PROC_CATEGORY_LT ||
         utf8proc_toupper(point) != point || utf8proc_tolower(point) != point;
}

}  // namespace headgate::tokenize
