// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace headgate::console {

/// `text` as a POSIX shell reads it back: in quotes where it needs them.
std::string shell_word(const std::string& text);

}  // namespace headgate::console
