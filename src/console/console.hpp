// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>

namespace headgate::console {

/// Prints and flushes. That it cannot is no error here: a stream whose reader is gone leads to /dev/null from then on,
/// and any other failure stays with the stream, where ferror finds it.
void say(std::FILE* stream, const std::string& text) noexcept;

}  // namespace headgate::console
