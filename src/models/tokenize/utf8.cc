// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/utf8.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace headgate::tokenize {
namespace {

std::uint8_t byte_at(std::string_view text, std::size_t i) { return static_cast<std::uint8_t>(text[i]); }

/// Returns the size in bytes of a character that begins with the byte `lead`, or 0 if no character does.
std::size_t length_after(std::uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

/// Returns whether the byte `second` may follow the byte `lead` in UTF-8. Excludes overlong forms, surrogates and code
/// points above U+10FFFF.
bool continues(std::uint8_t lead, std::uint8_t second) {
  if (lead == 0xE0) return second >= 0xA0 && second <= 0xBF;
  if (lead == 0xED) return second >= 0x80 && second <= 0x9F;
  if (lead == 0xF0) return second >= 0x90 && second <= 0xBF;
  if (lead == 0xF4) return second >= 0x80 && second <= 0x8F;
  return second >= 0x80 && second <= 0xBF;
}

}  // namespace

CodePoint first_code_point(std::string_view text) {
  if (text.empty()) return {};
  const std::uint8_t lead = byte_at(text, 0);
  const std::size_t bytes = length_after(lead);
  if (bytes == 0 || text.size() < bytes) return {};
  if (bytes == 1) return {lead, 1};
  if (!continues(lead, byte_at(text, 1))) return {};
  auto value = static_cast<char32_t>(lead & (0xFF >> (bytes + 1)));
  for (std::size_t i = 1; i < bytes; ++i) {
    const std::uint8_t next = byte_at(text, i);
    if (next < 0x80 || next > 0xBF) return {};
    value = (value << 6) | (next & 0x3F);
  }
  return {value, bytes};
}

CodePoint last_code_point(std::string_view text) {
  for (std::size_t bytes = 1; bytes <= std::min<std::size_t>(4, text.size()); ++bytes) {
    const CodePoint c = first_code_point(text.substr(text.size() - bytes));
    if (c.bytes == bytes) return c;
  }
  return {};
}

std::size_t well_formed_prefix_size(std::string_view text) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight = kHighBits;
    if (text.size() - at >= sizeof(eight)) std::memcpy(&eight, text.data() + at, sizeof(eight));
    if ((eight & kHighBits) == 0) {
      at += sizeof(eight);
      continue;
    }
    const std::size_t bytes = first_code_point(text.substr(at)).bytes;
    if (bytes == 0) break;
    at += bytes;
  }
  return at;
}

std::size_t ill_formed_prefix_size(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size() && first_code_point(text.substr(at)).bytes == 0) ++at;
  return at;
}

std::size_t incomplete_suffix_size(std::string_view text) {
  for (std::size_t bytes = 1; bytes <= std::min<std::size_t>(3, text.size()); ++bytes) {
    const std::string_view tail = text.substr(text.size() - bytes);
    const std::uint8_t lead = byte_at(tail, 0);
    if (lead >= 0x80 && lead < 0xC0) continue;
    return bytes < length_after(lead) && (bytes == 1 || continues(lead, byte_at(tail, 1))) ? bytes : 0;
  }
  return 0;
}

void append_utf8(std::string& text, char32_t value) {
  const auto byte = [&text](char32_t bits) { text += static_cast<char>(bits); };
  if (value < 0x80) return byte(value);
  if (value < 0x800) {
    byte(0xC0 | (value >> 6));
  } else if (value < 0x10000) {
    byte(0xE0 | (value >> 12));
    byte(0x80 | ((value >> 6) & 0x3F));
  } else {
    byte(0xF0 | (value >> 18));
    byte(0x80 | ((value >> 12) & 0x3F));
    byte(0x80 | ((value >> 6) & 0x3F));
  }
  byte(0x80 | (value & 0x3F));
}

}  // namespace headgate::tokenize
