// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "models/io/file_error.hpp"

namespace headgate::io {

/// Returns whether a path exists. Does not follow a symbolic link at its end. An optional file whose link leads to
/// nothing thus counts as present, and opening the file reports the error. Throws FileError if the check fails, for
/// example without permission.
inline bool exists(const std::string& path) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) == 0) return true;
  switch (errno) {
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG: return false;
    default: fail(path, "cannot read: {}", std::strerror(errno));
  }
}

}  // namespace headgate::io
