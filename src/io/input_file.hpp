// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "io/file_error.hpp"

namespace headgate::io {

/// Untrusted bytes, made safe to print on one line: at most `most` of them, those that are not printable ASCII as \xNN.
std::string printable(std::string_view text, std::size_t most = 40);

/// A regular file opened for reading; its size is taken at opening. The constructor throws FileError for anything else.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  std::size_t size() const { return size_; }

  /// Reads the next `bytes` bytes. Throws FileError if fewer are left.
  void read(void* to, std::size_t bytes) const;
  /// Reads `bytes` bytes from `offset`; does not move the position of read().
  void read_at(void* to, std::size_t bytes, std::size_t offset) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::size_t size_ = 0;
};

/// Reads a file of any kind, such as a pipe, to its end. Throws FileError for more than `most` bytes.
std::string read_stream(const std::string& path, std::size_t most);

/// Reads a whole regular file. Throws FileError, before anything is allocated, for more than `most` bytes.
std::string read_text(const std::string& path, std::size_t most);

}  // namespace headgate::io
