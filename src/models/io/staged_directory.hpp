// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "models/io/file_error.hpp"
#include "models/io/unfinished_paths.hpp"

namespace headgate::io {

/// Selects how commit() replaces an existing directory. `automatic` uses one atomic exchange (renameat2) if the file
/// system supports it, otherwise two renames. `two_renames` always uses two renames. Between the two, the old directory
/// is at ".NAME.old", where present_directory() finds it.
enum class Replacing { automatic, two_renames };

/// Throws NotReplaceable if `target` exists and is not a directory or holds anything but `names`.
void check_replaceable(const std::string& target, const std::vector<std::string>& names);

/// Writes a directory of known files atomically, replacing the one that was there.
///
/// Files are written to path(), the directory ".NAME.XXXXXXXX.new" beside the target. The destructor and
/// remove_unfinished_files() remove that directory unless it was committed. If the process is killed, the next
/// StagedDirectory of the same target removes it. Never replaces a directory that holds anything but `names`.
class StagedDirectory {
 public:
  /// Creates missing parent directories. Throws WriteError.
  StagedDirectory(const std::string& target, std::vector<std::string> names);
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;
  ~StagedDirectory();

  const std::string& path() const { return path_; }
  /// Moves the directory to its target. Its files must already be on the disk. Throws WriteError. The old directory is
  /// then unchanged, but at ".NAME.old" if only the first of two renames succeeded.
  void commit(Replacing replacing = Replacing::automatic);

 private:
  void open_staging();
  bool lock_staging();
  void remove_abandoned() const;
  void keep_permissions() const;
  bool exchange() const;
  void rename_twice() const;
  void remove_known(const std::string& directory) const;
  void sync_parent() const;
  [[noreturn]] void fail_with_reason() const;

  std::string target_;
  std::string parent_;
  std::string name_;  ///< name of the target in its parent directory
  std::vector<std::string> names_;
  std::string resolved_;  ///< the target with symbolic links resolved
  std::string old_;       ///< path of ".NAME.old" beside the target
  std::string path_;
  std::vector<UnfinishedPath> unfinished_;  ///< registers path_ and its files
  int lock_ = -1;  ///< holds the lock on path_; a staging directory without a lock was left by a killed process
};

/// Returns the path of the directory that was last committed to `target`: `target` itself, or ".NAME.old" if a process
/// was killed between two renames. Returns `target` if neither exists.
std::string present_directory(const std::string& target);

}  // namespace headgate::io
