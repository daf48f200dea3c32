// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "io/file_error.hpp"

namespace headgate::io {

/// Bytes of a file that is not trusted, fit for one line of a terminal: at most `most` of them, those beyond ASCII as
/// \xNN.
std::string printable(std::string_view text, std::size_t most = 40);

/// A regular file open for reading; its size is that at opening. Throws FileError for anything else.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  std::size_t size() const { return size_; }

  /// The next `bytes`. Throws FileError when there are fewer.
  void read(void* to, std::size_t bytes) const;
  /// `bytes` from `offset` on; the place of read() stays.
  void read_at(void* to, std::size_t bytes, std::size_t offset) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::size_t size_ = 0;
};

/// All that can be read from a file of any kind, such as a pipe: at most `most` bytes. Throws FileError for more.
std::string read_stream(const std::string& path, std::size_t most);

/// A whole file of at most `most` bytes. Throws FileError for a larger one, before anything is allocated.
std::string read_text(const std::string& path, std::size_t most);

}  // namespace headgate::io
