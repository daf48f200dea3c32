// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace headgate::io {

/// A file that cannot be read, written or understood: "PATH: what is wrong", one line.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A file or directory that cannot be written now; what was there stays, and it may be tried again.
class WriteError : public FileError {
 public:
  using FileError::FileError;
};

/// A directory that is not replaced because it is not, or not only, what was put there before.
class NotReplaceable : public WriteError {
 public:
  using WriteError::WriteError;
};

template <class Kind = FileError, typename... Args>
[[noreturn]] void fail(const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
  throw Kind(path + ": " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace headgate::io
