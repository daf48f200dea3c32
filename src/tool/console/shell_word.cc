// SPDX-License-Identifier: Apache-2.0
#include "tool/console/shell_word.hpp"

#include <fmt/format.h>

#include "tool/console/terminal_text.hpp"

namespace headgate::console {
namespace {

/// Returns `text` as $'…', with bytes that are not printable ASCII as \xNN, for instance $'a\x1bb'.
std::string with_escapes(const std::string& text) {
  std::string out = "$'";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c == '\'' || c == '\\' ? std::string{'\\', c} : std::string(1, c);
    }
  }
  return out + "'";
}

}  // namespace

std::string shell_word(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_-./+:,@%=") == std::string::npos;
  if (plain) return text;
  if (terminal_text(text) != text) return with_escapes(text);
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace headgate::console
