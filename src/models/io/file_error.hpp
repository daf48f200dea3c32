// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace headgate::io {

/// Reports a file that cannot be read or written, or whose content is invalid. The message is one line: "PATH: what is
/// wrong".
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reports a file or directory that cannot be written. The old content is unchanged, and the caller may retry.
class WriteError : public FileError {
 public:
  using FileError::FileError;
};

/// Reports a directory that is not replaced, because it contains files that this program does not write.
class NotReplaceable : public WriteError {
 public:
  using WriteError::WriteError;
};

/// Returns a path as messages show it. Writes control characters as \xNN, since a NUL would end the message. Shortens a
/// path of more than 1024 bytes in the middle.
std::string shown_path(std::string_view path);

template <class Kind = FileError, typename... Args>
[[noreturn]] void fail(const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
  throw Kind(shown_path(path) + ": " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace headgate::io
