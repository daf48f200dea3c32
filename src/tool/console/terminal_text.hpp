// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace headgate::console {

/// Returns one line that a terminal shows and does not obey: control characters, which a file's name may hold, become
/// spaces, and bytes that are not UTF-8 become \xNN.
std::string terminal_text(std::string_view text);

}  // namespace headgate::console
