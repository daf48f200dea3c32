// SPDX-License-Identifier: Apache-2.0
#include "tool/console/terminal_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "models/tokenize/utf8.hpp"

namespace headgate::console {

std::string terminal_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const tokenize::CodePoint first = tokenize::first_code_point(text);
    const bool control = first.value < 0x20 || (first.value >= 0x7F && first.value < 0xA0);
    if (first.bytes == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    } else if (control) {
      out += ' ';
    } else {
      out += text.substr(0, first.bytes);
    }
    text.remove_prefix(std::max<std::size_t>(first.bytes, 1));
  }
  return out;
}

}  // namespace headgate::console
