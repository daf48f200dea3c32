// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "io/file_error.hpp"

namespace headgate::io {

/// Throws WriteError if a StagedFile at `path` is bound to fail; touches nothing.
void check_writable(const std::string& path);

/// automatic: nameless where the file system offers it; named: always under a temporary name.
enum class Staging { automatic, named };

/// Removes the temporary files of every StagedFile of this process that is not committed and has one. A signal handler
/// may call it, in any thread, before it ends the process: it is async-signal-safe (and may change errno).
void remove_unfinished_files() noexcept;

/// A file that appears at its path whole or not at all.
///
/// Bytes go to a nameless file in the target's directory (O_TMPFILE), which vanishes however the process ends; where
/// the file system has none of those, to ".NAME.XXXXXXXX.tmp" there, which the destructor removes. A process that a
/// signal ends leaves that file behind, unless the signal's handler calls remove_unfinished_files(). `commit` flushes
/// to the disk and renames. A symbolic link at the path is followed; anything else but a regular file there is refused.
class StagedFile {
 public:
  /// `stage_in`: another directory of the same file system for the bytes, where the target's own is yet to be made.
  /// Throws WriteError if the directory takes no new file; so do write, flush and commit where they fail.
  explicit StagedFile(const std::string& path, Staging staging = Staging::automatic, const std::string& stage_in = {});
  StagedFile(StagedFile&& other) noexcept;
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;
  StagedFile& operator=(StagedFile&&) = delete;
  ~StagedFile();

  void write(const void* data, std::size_t bytes);
  /// Everything is on the disk, under no name or a temporary one: what is left for commit() is a rename.
  void flush();
  /// Puts the file at its path, over what was there.
  void commit();

 private:
  void open_nameless();
  void open_named();
  void give_name();

  std::string path_;    ///< as the caller wrote it, for messages
  std::string target_;  ///< with symbolic links resolved
  std::string stage_in_;
  std::string temporary_;
  int descriptor_ = -1;
  bool flushed_ = false;
  int slot_ = -1;  ///< of temporary_ in the table that remove_unfinished_files reads
};

}  // namespace headgate::io
