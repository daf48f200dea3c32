// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/charsmap.hpp"

#include <algorithm>
#include <cstring>

#include "models/tokenize/error.hpp"
#include "models/tokenize/utf8.hpp"

namespace headgate::tokenize {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Bit fields of a 32-bit node of the trie, which Darts-clone calls a unit (see charsmap.hpp).
constexpr std::uint32_t kIsValue = std::uint32_t{1} << 31;  ///< set in nodes that hold a value instead of a byte
constexpr std::uint32_t kLabel = kIsValue | 0xFF;
constexpr std::uint32_t kHasValue = std::uint32_t{1} << 8;
constexpr std::uint32_t kFar = std::uint32_t{1} << 9;  ///< set if the distance to the children is in units of 256 nodes

std::size_t distance(std::uint32_t unit) { return std::size_t{unit >> 10} << ((unit & kFar) != 0 ? 8 : 0); }

}  // namespace

Charsmap::Charsmap(std::string_view bytes) {
  std::uint32_t trie = 0;
  if (bytes.size() < sizeof trie) refuse("a table of {} bytes, which has no size", bytes.size());
  std::memcpy(&trie, bytes.data(), sizeof trie);
  bytes.remove_prefix(sizeof trie);
  if (trie > bytes.size() || trie == 0 || trie % sizeof(std::uint32_t) != 0) {
    refuse("a trie of {} bytes in {} bytes; only multiples of 4 that fit are supported", trie, bytes.size());
  }
  units_.resize(trie / sizeof(std::uint32_t));
  std::memcpy(units_.data(), bytes.data(), trie);
  replacements_ = bytes.substr(trie);
  if (well_formed_prefix_size(replacements_) != replacements_.size()) refuse("replacements that are not UTF-8");
}

std::uint32_t Charsmap::unit(std::size_t at) const {
  if (at >= units_.size()) refuse("precompiled_charsmap: the trie leads to unit {} of {}", at, units_.size());
  return units_[at];
}

std::string_view Charsmap::replacement(std::size_t at) const {
  constexpr unsigned kContinuationMask = 0xC0, kContinuation = 0x80;
  const std::string_view all = replacements_;
  const bool inside = at < all.size() && (static_cast<unsigned char>(all[at]) & kContinuationMask) == kContinuation;
  if (at > all.size() || inside) {
    refuse("precompiled_charsmap: the trie leads to byte {} of {} bytes of replacements", at, all.size());
  }
  return all.substr(at, std::min(all.find('\0', at), all.size()) - at);
}

std::optional<std::string_view> Charsmap::find(std::string_view text) const {
  std::size_t at = distance(unit(0));
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) return std::nullopt;
    at ^= byte;
    const std::uint32_t found = unit(at);
    if ((found & kLabel) != byte) return std::nullopt;
    at ^= distance(found);
    if ((found & kHasValue) != 0) return replacement(unit(at) & ~kIsValue);
  }
  return std::nullopt;
}

std::string decode_base64(std::string_view text) {
  constexpr std::size_t kGroup = 4, kDigitBits = 6, kByteBits = 8;
  std::size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) {
    text.remove_suffix(1);
    ++padding;
  }
  if ((text.size() + padding) % kGroup != 0) refuse("base64 of {} digits", text.size() + padding);
  std::string out;
  std::uint32_t bits = 0;
  std::size_t count = 0;  // number of valid bits in `bits`, which still have to be written
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) refuse("a character that is no digit of base64");
    bits = (bits << kDigitBits | static_cast<std::uint32_t>(digit)) & 0xFFFF;
    count += kDigitBits;
    if (count < kByteBits) continue;
    count -= kByteBits;
    out += static_cast<char>(bits >> count & 0xFF);
  }
  if ((bits & ((1U << count) - 1)) != 0) refuse("base64 that ends with bits of no byte");
  return out;
}

}  // namespace headgate::tokenize
