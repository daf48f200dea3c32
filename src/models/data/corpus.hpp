// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/data/text_files.hpp"
#include "models/io/mapped_file.hpp"

namespace headgate::train {

/// Concatenates text files without copying them.
class Corpus {
 public:
  /// Maps the files in `paths`. For a directory in `paths`, maps the files that `choice` selects (see files_below) and
  /// that begin with UTF-8 text. Throws io::FileError in these cases:
  /// - A path cannot be read.
  /// - A file in `paths` does not begin with UTF-8 text.
  /// - A directory has no file to map.
  explicit Corpus(const std::vector<std::string>& paths, const FileChoice& choice = {});

  std::int64_t size() const { return size_; }  ///< bytes
  std::size_t files() const { return files_.size(); }
  /// Returns the offset of a file's first byte in the text. For file == files(), returns size().
  std::int64_t begin_of(std::size_t file) const { return file == files_.size() ? size_ : starts_[file]; }
  /// Returns the paths of the corpus, joined by commas, for messages.
  const std::string& name() const { return name_; }
  const LeftOut& left_out() const { return left_out_; }
  /// Copies bytes [begin, begin + count) of the text to out(count). The range must lie in the text. Throws
  /// io::FileError if a file has become shorter.
  void copy(std::int32_t* out, std::int64_t begin, std::int64_t count) const;
  /// Returns a hash that identifies the text. The hash covers the size of each file and up to 4096 sampled bytes of it.
  std::uint64_t fingerprint() const;

  /// Passes bytes [begin, end) of the text to body(data, count), in order. Each call gets contiguous bytes of one file.
  /// Throws io::FileError if a file has become shorter.
  template <class Body>
  void for_pieces(std::int64_t begin, std::int64_t end, const Body& body) const {
    for (std::size_t i = file_at(begin); begin < end; ++i) {
      const std::int64_t in_file = begin - starts_[i];
      const std::int64_t count = std::min(end - begin, files_[i].size() - in_file);
      files_[i].check_whole();
      body(files_[i].data() + in_file, count);
      begin += count;
    }
  }

 private:
  void add_directory(const std::string& directory, const FileChoice& choice);
  void add_file(io::MappedFile file);
  std::size_t file_at(std::int64_t position) const;

  std::string name_;
  std::vector<io::MappedFile> files_;  ///< all files of the text that are not empty, in order
  std::vector<std::int64_t> starts_;   ///< offset of each file in the text, in bytes
  std::int64_t size_ = 0;
  LeftOut left_out_;
};

/// Returns the paths of the files that a Corpus of `paths` reads. Does not check whether files named in `paths` exist.
/// Throws io::FileError if a directory or a file in it cannot be read.
std::vector<std::string> text_files(const std::vector<std::string>& paths, const FileChoice& choice = {});

/// Returns the offset of the first byte that is zero or not well-formed UTF-8, or `count` if there is none. Accepts a
/// character that the end of the text cuts off.
std::int64_t first_bad_utf8(const std::uint8_t* text, std::int64_t count);

}  // namespace headgate::train
