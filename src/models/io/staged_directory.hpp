// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "models/io/file_error.hpp"
#include "models/io/unfinished_paths.hpp"

namespace headgate::io {

/// Selects how commit() replaces an existing directory.
/// - automatic: by one atomic exchange (renameat2), or by two renames if the file system does not support an exchange.
/// - two_renames: by two renames. Between them, the old directory is at ".NAME.old", where present_directory() finds
///   it.
enum class Replacing { automatic, two_renames };

/// Throws NotReplaceable if `target` is a file, or a directory that contains entries other than `names`.
void check_replaceable(const std::string& target, const std::vector<std::string>& names);

/// Writes a directory of known files, which atomically replaces an existing directory. Never replaces a directory that
/// contains files other than `names`.
///
/// The caller writes files to path(), a new directory ".NAME.XXXXXXXX.new" beside the target. commit() moves the new
/// directory to the target. Without a successful commit(), the new directory is removed by:
/// - the destructor
/// - remove_unfinished_files(), if a signal ends the process
/// - the next StagedDirectory with the same target, if the process is killed
class StagedDirectory {
 public:
  /// Creates missing parent directories. Throws WriteError if the new directory cannot be created or cannot replace the
  /// target.
  StagedDirectory(const std::string& target, std::vector<std::string> names);
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;
  ~StagedDirectory();

  const std::string& path() const { return path_; }
  /// Moves the directory to its target. All files in it must be flushed to the disk. On failure, throws WriteError and
  /// leaves the old directory unchanged. The old directory is then still at the target, or at ".NAME.old" if only the
  /// first of two renames succeeded.
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
  std::string name_;  ///< name of the target within its parent directory
  std::vector<std::string> names_;
  std::string resolved_;  ///< the target with symbolic links resolved
  std::string old_;       ///< path of ".NAME.old" beside the target
  std::string path_;
  std::vector<UnfinishedPath> unfinished_;  ///< registrations of path_ and its files for remove_unfinished_files()
  /// Descriptor that holds the lock on path_. A staging directory without a lock was left behind by a killed process.
  int lock_ = -1;
};

/// Returns where the directory last committed to `target` is: at `target`, or at ".NAME.old" if a process was killed
/// between two renames. Returns `target` if neither exists.
std::string present_directory(const std::string& target);

}  // namespace headgate::io
