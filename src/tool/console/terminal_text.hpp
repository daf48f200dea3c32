// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace headgate::console {

/// Returns `text` as one line that is safe to print on a terminal.
/// Control characters, which file names may contain, become spaces. Bytes that are not valid UTF-8 become \xNN.
std::string terminal_text(std::string_view text);

}  // namespace headgate::console
