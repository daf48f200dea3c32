// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>

namespace headgate::console {

/// Prints the text and flushes the stream. Returns false if the stream is a pipe that its reader has closed.
/// Before it returns false, redirects the stream to /dev/null, if possible, so that later calls succeed.
/// Returns true even if writing fails for another reason. std::ferror() reports such failures.
bool say(std::FILE* stream, const std::string& text) noexcept;

/// Returns whether a stream is a terminal that supports control codes: TERM is set and is not "dumb".
bool takes_control_codes(int descriptor);
/// Returns whether a stream may show colours: it supports control codes, and NO_COLOR is unset or empty.
bool takes_colours(int descriptor);

/// Turns off notes and progress for the rest of the process, as --quiet does.
void be_quiet();
bool is_quiet();

/// Prints `text` on stderr unless is_quiet(). For remarks that are neither results nor errors.
void note(const std::string& text) noexcept;

}  // namespace headgate::console
