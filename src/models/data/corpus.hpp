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

/// Concatenates text files.
class Corpus {
 public:
  /// `paths`: files, or directories of which `choice` selects files (files_below). Throws io::FileError for a path that
  /// cannot be read, for a file whose beginning is not UTF-8, and for a directory without a UTF-8 file. Other files
  /// below a directory are left out.
  explicit Corpus(const std::vector<std::string>& paths, const FileChoice& choice = {});

  std::int64_t size() const { return size_; }  ///< bytes
  std::size_t files() const { return files_.size(); }
  /// Returns the position in the text of a file's first byte; size() for the number of files.
  std::int64_t begin_of(std::size_t file) const { return file == files_.size() ? size_ : starts_[file]; }
  /// Returns the paths given, for messages.
  const std::string& name() const { return name_; }
  const LeftOut& left_out() const { return left_out_; }
  /// out(count) = bytes [begin, begin + count), which must lie in the text. Throws io::FileError if a file has become
  /// shorter.
  void copy(std::int32_t* out, std::int64_t begin, std::int64_t count) const;
  /// Returns a hash of the sizes and of samples of all files, which identifies the text.
  std::uint64_t fingerprint() const;

  /// Calls body(data, count) for each contiguous piece of [begin, end), in order. Throws as copy does.
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
  std::vector<io::MappedFile> files_;  ///< each has at least one byte
  std::vector<std::int64_t> starts_;   ///< offset of each file
  std::int64_t size_ = 0;
  LeftOut left_out_;
};

/// Returns the files that a Corpus of `paths` reads. Does not check paths of files. Throws io::FileError for a
/// directory or a file in it that cannot be read.
std::vector<std::string> text_files(const std::vector<std::string>& paths, const FileChoice& choice = {});

/// Returns the offset of the first byte that is not well-formed UTF-8 or is zero, `count` if there is none. A character
/// cut off by the end is accepted.
std::int64_t first_bad_utf8(const std::uint8_t* text, std::int64_t count);

}  // namespace headgate::train
