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

template <typename... Args>
[[noreturn]] void fail(const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
  throw FileError(path + ": " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace headgate::io
