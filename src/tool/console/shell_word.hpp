// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace headgate::console {

/// Quotes `text` if a POSIX shell would not read it as one word.
/// Text with control characters or invalid UTF-8 becomes $'…', with those bytes as \xNN.
std::string shell_word(const std::string& text);

}  // namespace headgate::console
