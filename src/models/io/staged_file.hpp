// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "models/io/file_error.hpp"
#include "models/io/unfinished_paths.hpp"

namespace headgate::io {

/// Throws WriteError if a StagedFile cannot be created for `path`. Changes nothing.
void check_writable(const std::string& path);

/// Kind of the temporary file. `automatic` uses a nameless one if the file system supports it, else a named one.
/// `named` always uses a named one.
enum class Staging { automatic, named };

/// Writes a file atomically: it appears at its path complete or not at all.
///
/// Bytes are written to a nameless file in the target's directory (O_TMPFILE), which disappears when the process ends.
/// If the file system does not support that, they are written to ".NAME.XXXXXXXX.tmp" there, which the destructor
/// removes. If a signal ends the process, that file remains unless the signal handler calls remove_unfinished_files().
/// commit() flushes the data to the disk and renames the file.
///
/// Follows a symbolic link at the path. If anything but a regular file is there, the constructor throws.
class StagedFile {
 public:
  /// `stage_in` is the directory of the temporary file; by default, that of the target. Give another one, on the same
  /// file system, if the target's directory does not exist yet. The constructor throws WriteError if it cannot create
  /// the file. write(), flush() and commit() throw WriteError if they fail.
  explicit StagedFile(const std::string& path, Staging staging = Staging::automatic, const std::string& stage_in = {});
  StagedFile(StagedFile&& other) noexcept;
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;
  StagedFile& operator=(StagedFile&&) = delete;
  ~StagedFile();

  void write(const void* data, std::size_t bytes);
  /// Flushes all data to the disk. commit() then only gives the file its name.
  void flush();
  /// Moves the file to its path, replacing an existing one.
  void commit();

 private:
  void open_nameless();
  void open_named();
  void give_name();

  std::string path_;    ///< path as the caller wrote it, for messages
  std::string target_;  ///< path with symbolic links resolved
  std::string stage_in_;
  std::string temporary_;
  int descriptor_ = -1;
  bool flushed_ = false;
  UnfinishedPath unfinished_;  ///< registers temporary_
};

/// Writes a whole text file atomically. Throws WriteError.
void write_text(const std::string& path, std::string_view text);

}  // namespace headgate::io
