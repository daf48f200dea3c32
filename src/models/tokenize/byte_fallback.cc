// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/byte_fallback.hpp"

#include <fmt/format.h>

#include <cstddef>

#include "models/tokenize/error.hpp"

namespace headgate::tokenize {

std::optional<ByteIds> find_byte_tokens(const Vocabulary& vocabulary) {
  ByteIds ids{};
  int found = 0, missing = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const std::int32_t id = vocabulary.find(fmt::format("<0x{:02X}>", byte));
    ids[static_cast<std::size_t>(byte)] = id;
    if (id != kNoToken) {
      ++found;
    } else {
      missing = byte;
    }
  }
  if (found == 0) return std::nullopt;
  if (found < 256) refuse("{} of the 256 byte tokens are there, but not '<0x{:02X}>'", found, missing);
  return ids;
}

std::optional<std::uint8_t> byte_of_token(std::string_view spelling) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling.back() != '>') return std::nullopt;
  const std::size_t high = kDigits.find(spelling[3]), low = kDigits.find(spelling[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
  return static_cast<std::uint8_t>(high * 16 + low);
}

}  // namespace headgate::tokenize
