// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "io/file_error.hpp"

namespace headgate::io {

/// How a directory takes another's place. exchange: in one step of the file system (renameat2). two_renames: for file
/// systems without it; between the two the old directory lies at ".NAME.old", where present_directory finds it.
enum class Replacing { automatic, two_renames };

/// Throws NotReplaceable where `target` is there and is no directory or holds anything but `names`.
void check_replaceable(const std::string& target, const std::vector<std::string>& names);

/// A directory of known files that appears at its path whole or not at all, over the one that was there.
///
/// Files are written below path(), ".NAME.XXXXXXXX.new" beside the target, which the destructor removes; what a killed
/// process left of the kind is removed by the next one. A directory that holds anything but `names` is never replaced.
class StagedDirectory {
 public:
  /// Makes parent directories that are missing. Throws WriteError.
  StagedDirectory(const std::string& target, std::vector<std::string> names);
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;
  ~StagedDirectory();

  const std::string& path() const { return path_; }
  /// Files must be on the disk already. Throws WriteError; what was at the target then stays.
  void commit(Replacing replacing = Replacing::automatic);

 private:
  void open_staging();
  void remove_abandoned() const;
  bool exchange() const;
  void rename_twice() const;
  void remove_known(const std::string& directory) const;
  void sync_parent() const;
  [[noreturn]] void fail_with_reason() const;

  std::string target_;
  std::string parent_;
  std::string name_;  ///< the target's, in its parent
  std::vector<std::string> names_;
  std::string resolved_;  ///< the target, links resolved
  std::string old_;       ///< ".NAME.old" beside it
  std::string path_;
  int lock_ = -1;  ///< path_ itself, locked: whoever finds it unlocked knows it abandoned
};

/// Where a directory that StagedDirectory put at `target` lies: there, or where a process that died between two renames
/// has left it. Nothing at all: `target`.
std::string present_directory(const std::string& target);

}  // namespace headgate::io
