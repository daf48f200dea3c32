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

/// Makes untrusted bytes safe to print on one line. Writes all bytes as \xNN, except printable ASCII. Shows at most
/// `most` bytes.
std::string printable(std::string_view text, std::size_t most = 40);

/// Returns printable() of a tensor's name. Allows 200 characters, because similar names often differ only at the end.
inline std::string printable_name(std::string_view name) { return printable(name, 200); }

/// A regular file, opened for reading. The constructor throws FileError if the path is not a readable regular file.
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
  /// Reads `bytes` bytes from `offset` on. Does not move the position where the next read() begins.
  void read_at(void* to, std::size_t bytes, std::size_t offset) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::size_t size_ = 0;
};

/// Reads a file of any kind once, from beginning to end. The file may be a pipe.
class InputStream {
 public:
  /// Throws FileError if the path cannot be opened, is a directory, or is a regular file of more than `most` bytes.
  explicit InputStream(const std::string& path, std::size_t most = std::numeric_limits<std::size_t>::max());

  /// Returns the next bytes, which are valid until the next call. Returns an empty view at the end of the file. Throws
  /// FileError if reading fails, or if the file has more than `most` bytes.
  std::string_view next();

 private:
  [[noreturn]] void refuse_size() const;

  std::string path_;
  std::size_t most_;
  std::size_t done_ = 0;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::string part_;
};

/// Reads a file of any kind to its end. Throws FileError in the same cases as InputStream.
std::string read_stream(const std::string& path, std::size_t most);

/// Reads a whole regular file. Throws FileError before allocating memory if the file has more than `most` bytes.
std::string read_text(const std::string& path, std::size_t most);

}  // namespace headgate::io
