// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>

namespace headgate::console {

/// Prints the text and flushes; does not report errors. If the stream's reader is gone, redirects the stream to
/// /dev/null and returns false once. Any other failure remains visible by ferror.
bool say(std::FILE* stream, const std::string& text) noexcept;

/// Returns whether a stream is a terminal that understands control codes (TERM is set and not "dumb").
bool takes_control_codes(int descriptor);
/// Returns whether a stream takes control codes and may show colours: NO_COLOR is not set, or empty.
bool takes_colours(int descriptor);

/// Suppresses notes and progress from now on (--quiet).
void be_quiet();
bool is_quiet();

/// Prints text that is neither a result nor an error on stderr, unless is_quiet().
void note(const std::string& text) noexcept;

}  // namespace headgate::console
