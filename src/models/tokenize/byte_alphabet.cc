// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/byte_alphabet.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

#include "models/tokenize/utf8.hpp"

namespace headgate::tokenize {
namespace {

constexpr std::size_t kCharacters = 256 + 68;  // 68 bytes are spelled as characters above U+00FF

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<std::int16_t, kCharacters> byte{};

  constexpr Alphabet() {
    byte.fill(-1);
    char32_t next = 256;
    for (char32_t b = 0; b < 256; ++b) {
      const bool visible = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
      character[b] = visible ? b : next++;
      byte[character[b]] = static_cast<std::int16_t>(b);
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

std::string spelling_of(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) append_utf8(out, kAlphabet.character[static_cast<std::uint8_t>(c)]);
  return out;
}

std::optional<std::string> bytes_of(std::string_view spelling) {
  std::string out;
  while (!spelling.empty()) {
    const CodePoint c = first_code_point(spelling);
    if (c.bytes == 0 || c.value >= kCharacters || kAlphabet.byte[c.value] < 0) return std::nullopt;
    out += static_cast<char>(kAlphabet.byte[c.value]);
    spelling.remove_prefix(c.bytes);
  }
  return out;
}

}  // namespace headgate::tokenize
