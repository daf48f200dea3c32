// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace headgate::io {

/// Reports a file that cannot be read, written or understood: "PATH: what is wrong", one line.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reports a file or directory that cannot be written. The old content is unchanged, and the write may be retried.
class WriteError : public FileError {
 public:
  using FileError::FileError;
};

/// Reports a directory that is not replaced because it holds other files than those written there before.
class NotReplaceable : public WriteError {
 public:
  using WriteError::WriteError;
};

/// Returns a path for messages, with control characters as \xNN: a NUL would end the message. Of more than 1024 bytes
/// the middle is left out.
std::string shown_path(std::string_view path);

template <class Kind = FileError, typename... Args>
[[noreturn]] void fail(const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
  throw Kind(shown_path(path) + ": " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace headgate::io
