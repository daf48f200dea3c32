// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "models/io/file_error.hpp"

namespace headgate::io {

/// Returns whether something is at a path. A symbolic link counts even if it leads to nothing: an optional file that is
/// lost is an error when it is opened, and is not taken for one that was never there. Throws FileError if the system
/// does not allow to look.
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
