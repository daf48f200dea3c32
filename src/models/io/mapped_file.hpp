// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "models/io/file_error.hpp"

namespace headgate::io {

struct MappedRegion;

/// Maps a file into memory for reading. If another process shortens the file, access to the missing part raises SIGBUS.
/// The signal handler can get the path of the file from mapped_path_at().
class MappedFile {
 public:
  /// Throws FileError.
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  const std::uint8_t* data() const { return static_cast<const std::uint8_t*>(data_); }
  std::int64_t size() const { return size_; }
  /// Throws FileError if the file has become shorter.
  void check_whole() const;

 private:
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  void* data_ = nullptr;
  std::int64_t size_ = 0;
  MappedRegion* region_ = nullptr;
};

/// Returns the path of the file that a MappedFile has mapped at `address`, in the form of shown_path(). Returns null if
/// there is none. The function is async-signal-safe, so a SIGBUS handler may call it.
const char* mapped_path_at(const void* address) noexcept;

}  // namespace headgate::io
