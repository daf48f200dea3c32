// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>

namespace headgate::console {

/// Prints and flushes; does not report errors. If the stream's reader is gone, the stream is redirected to /dev/null,
/// and the result is false this once; any other failure remains visible by ferror.
bool say(std::FILE* stream, const std::string& text) noexcept;

/// Returns whether a stream is a terminal that understands control codes (TERM is set and not "dumb").
bool takes_control_codes(int descriptor);
/// Returns whether it also shows colours: NO_COLOR is not set, or empty.
bool takes_colours(int descriptor);

/// Leaves out notes and progress from now on, as --quiet asks.
void be_quiet();
bool is_quiet();

/// Prints on stderr what is not a result and not an error, unless is_quiet().
void note(const std::string& text) noexcept;

}  // namespace headgate::console
