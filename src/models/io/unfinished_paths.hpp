// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace headgate::io {

/// Removes the paths of all UnfinishedPath objects in this process: first the files, then the directories if they are
/// empty. The function is async-signal-safe, so a signal handler in any thread may call it before it ends the process.
/// May change errno.
void remove_unfinished_files() noexcept;

enum class PathKind { file, directory };

/// Registers a temporary path, so that remove_unfinished_files() removes it. forget() or the destructor ends the
/// registration. Does not register paths of PATH_MAX or more bytes, nor more than 64 paths at a time.
class UnfinishedPath {
 public:
  UnfinishedPath() = default;
  UnfinishedPath(const std::string& path, PathKind kind);
  UnfinishedPath(UnfinishedPath&& other) noexcept;
  UnfinishedPath& operator=(UnfinishedPath&& other) noexcept;
  UnfinishedPath(const UnfinishedPath&) = delete;
  UnfinishedPath& operator=(const UnfinishedPath&) = delete;
  ~UnfinishedPath() { forget(); }

  /// Ends the registration.
  void forget();

 private:
  int slot_ = -1;
};

}  // namespace headgate::io
