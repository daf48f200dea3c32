// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/io/file_error.hpp"

namespace headgate::io {

/// Holds an exclusive lock (flock) on a directory. The kernel releases the lock when the process ends, also after a
/// crash.
class DirectoryLock {
 public:
  /// Throws FileError if the directory cannot be opened or is already locked. The message names the process that holds
  /// the lock, if the kernel reports it.
  explicit DirectoryLock(const std::string& path);
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  ~DirectoryLock();

  /// Returns why the file system cannot lock the directory. Returns an empty string if this object holds the lock.
  const std::string& unavailable() const { return unavailable_; }

 private:
  int descriptor_ = -1;
  std::string unavailable_;
};

}  // namespace headgate::io
