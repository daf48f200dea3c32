// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/io/file_error.hpp"

namespace headgate::io {

/// An exclusive lock (flock) on a directory. The kernel releases it when the process ends, however it ends.
class DirectoryLock {
 public:
  /// Throws FileError where the directory cannot be opened or is locked already, then with the holder's process id if
  /// the kernel gives it.
  explicit DirectoryLock(const std::string& path);
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  ~DirectoryLock();

  /// Empty if the directory is locked; otherwise why the file system cannot lock it.
  const std::string& unavailable() const { return unavailable_; }

 private:
  int descriptor_ = -1;
  std::string unavailable_;
};

}  // namespace headgate::io
