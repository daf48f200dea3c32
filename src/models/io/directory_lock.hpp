// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/io/file_error.hpp"

namespace headgate::io {

/// Holds an exclusive lock (flock) on a directory. The kernel releases the lock when the process ends for any reason.
class DirectoryLock {
 public:
  /// Throws FileError if the directory cannot be opened or is locked already. If the kernel reports which process holds
  /// the lock, the message names it.
  explicit DirectoryLock(const std::string& path);
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  ~DirectoryLock();

  /// Returns the reason why the file system cannot lock the directory, or an empty string if it is locked.
  const std::string& unavailable() const { return unavailable_; }

 private:
  int descriptor_ = -1;
  std::string unavailable_;
};

}  // namespace headgate::io
