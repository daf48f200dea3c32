// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "models/io/file_error.hpp"
#include "models/io/unfinished_paths.hpp"

namespace headgate::io {

/// Throws WriteError if a StagedFile could not be created for `path`. Creates nothing.
void check_writable(const std::string& path);

/// Selects the kind of temporary file. `automatic` uses a nameless file if the file system supports it, and a named one
/// otherwise. `named` always uses a named file.
enum class Staging { automatic, named };

/// Writes a file atomically: the file appears at its path complete, or not at all. commit() flushes the data to the
/// disk and gives the file its name. Until then, the data is in one of these files in the target's directory:
/// - a nameless file (O_TMPFILE), which disappears when the process ends
/// - ".NAME.XXXXXXXX.tmp", if the file system does not support nameless files. The destructor removes it. A signal
///   handler that ends the process must call remove_unfinished_files().
///
/// Follows a symbolic link at the path. The constructor throws if the path refers to something other than a regular
/// file.
class StagedFile {
 public:
  /// Creates the temporary file in the directory `stage_in`. The default is the target's directory. If that directory
  /// does not exist yet, pass another one on the same file system. The constructor, write(), flush() and commit() throw
  /// WriteError if they fail.
  explicit StagedFile(const std::string& path, Staging staging = Staging::automatic, const std::string& stage_in = {});
  StagedFile(StagedFile&& other) noexcept;
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;
  StagedFile& operator=(StagedFile&&) = delete;
  ~StagedFile();

  void write(const void* data, std::size_t bytes);
  /// Flushes all data to the disk. commit() then only gives the file its name.
  void flush();
  /// Moves the file to its path. Replaces an existing file.
  void commit();

 private:
  void open_nameless();
  void open_named();
  void give_name();

  std::string path_;    ///< path as the caller wrote it, for messages
  std::string target_;  ///< path after resolving symbolic links
  std::string stage_in_;
  std::string temporary_;
  int descriptor_ = -1;
  bool flushed_ = false;
  UnfinishedPath unfinished_;  ///< registers temporary_
};

/// Writes a whole text file atomically. Throws WriteError.
void write_text(const std::string& path, std::string_view text);

}  // namespace headgate::io
