// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace headgate::io {

/// Removes the paths of all UnfinishedPaths of this process: files first, then directories, if they are empty.
/// Async-signal-safe: a signal handler may call it in any thread before it ends the process. May change errno.
void remove_unfinished_files() noexcept;

enum class PathKind { file, directory };

/// A temporary path that remove_unfinished_files() removes while this object knows it. Beyond 64 paths in a process, or
/// PATH_MAX bytes, a path is not removed.
class UnfinishedPath {
 public:
  UnfinishedPath() = default;
  UnfinishedPath(const std::string& path, PathKind kind);
  UnfinishedPath(UnfinishedPath&& other) noexcept;
  UnfinishedPath& operator=(UnfinishedPath&& other) noexcept;
  UnfinishedPath(const UnfinishedPath&) = delete;
  UnfinishedPath& operator=(const UnfinishedPath&) = delete;
  ~UnfinishedPath() { forget(); }

  /// The path is finished, or gone.
  void forget();

 private:
  int slot_ = -1;
};

}  // namespace headgate::io
