// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>

namespace headgate::cli {

/// Prints and flushes. That it cannot is no error here: a stream whose reader is gone leads to /dev/null from then on,
/// and any other failure stays with the stream, where ferror finds it.
void say(std::FILE* stream, const std::string& text) noexcept;

/// For work that must not be lost to its output: from here to the end of the process a reader that is gone and a file
/// that may not grow are errors of the write and not signals that end the process, and no file that is opened later
/// takes the number of a standard stream that was closed.
void outlive_output();

}  // namespace headgate::cli
