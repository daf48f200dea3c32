// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>

namespace headgate::console {

/// Prints and flushes; does not report errors. If the stream's reader is gone, the stream is redirected to /dev/null,
/// and the result is false this once; any other failure remains visible by ferror.
bool say(std::FILE* stream, const std::string& text) noexcept;

}  // namespace headgate::console
