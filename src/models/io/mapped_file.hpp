// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "models/io/file_error.hpp"

namespace headgate::io {

/// A file mapped into memory for reading.
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
  /// Throws FileError if the file has been shortened: reading the missing part would raise SIGBUS.
  void check_whole() const;

 private:
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  void* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace headgate::io
