// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace headgate::io {

/// Removes the paths of all UnfinishedPath objects of this process: first files, then directories that are empty.
/// Async-signal-safe: a signal handler may call it in any thread before it ends the process. May change errno.
void remove_unfinished_files() noexcept;

enum class PathKind { file, directory };

/// Registers a temporary path. remove_unfinished_files() removes it until forget() is called or the object is
/// destroyed. Does not register paths of PATH_MAX bytes or more, or more than 64 paths per process.
class UnfinishedPath {
 public:
  UnfinishedPath() = default;
  UnfinishedPath(const std::string& path, PathKind kind);
  UnfinishedPath(UnfinishedPath&& other) noexcept;
  UnfinishedPath& operator=(UnfinishedPath&& other) noexcept;
  UnfinishedPath(const UnfinishedPath&) = delete;
  UnfinishedPath& operator=(const UnfinishedPath&) = delete;
  ~UnfinishedPath() { forget(); }

  /// Unregisters the path.
  void forget();

 private:
  int slot_ = -1;
};

}  // namespace headgate::io
