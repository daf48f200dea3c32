// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "models/io/file_error.hpp"

namespace headgate::io {

/// Makes untrusted bytes safe to print on one line: writes all but printable ASCII as \xNN, and shows at most `most`
/// bytes.
std::string printable(std::string_view text, std::size_t most = 40);

/// A regular file, opened for reading. The constructor throws FileError for anything else.
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
  /// Reads `bytes` bytes from `offset`. The next read() continues where the last read() ended.
  void read_at(void* to, std::size_t bytes, std::size_t offset) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::size_t size_ = 0;
};

/// Reads a file of any kind, such as a pipe, once from its beginning to its end.
class InputStream {
 public:
  /// Throws FileError if the path cannot be opened, is a directory, or is a regular file of more than `most` bytes.
  explicit InputStream(const std::string& path, std::size_t most = std::numeric_limits<std::size_t>::max());

  /// Returns the next bytes, valid until the next call, or nothing at the end of the file. Throws FileError if reading
  /// fails or more than `most` bytes have been read.
  std::string_view next();

 private:
  [[noreturn]] void refuse_size() const;

  std::string path_;
  std::size_t most_;
  std::size_t done_ = 0;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::string part_;
};

/// Reads a file of any kind to its end. Throws as InputStream does.
std::string read_stream(const std::string& path, std::size_t most);

/// Reads a whole regular file. If it has more than `most` bytes, throws FileError before allocating memory.
std::string read_text(const std::string& path, std::size_t most);

}  // namespace headgate::io
