// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace headgate::console {

/// Quotes `text` for a POSIX shell where necessary. Control characters and bytes that are not UTF-8 become $'\xNN'.
std::string shell_word(const std::string& text);

}  // namespace headgate::console
