// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "headgate/tensor.hpp"
#include "models/io/file_error.hpp"
#include "models/io/staged_file.hpp"

// Reads and writes NumPy's .npy files (numpy.lib.format): versions 1.0, 2.0 and 3.0, C or Fortran order, little-endian
// f2 f4 f8 i1 i4 i8 b1. Sizes in a header are checked against the size of the file before anything is allocated.

namespace headgate::io {

inline constexpr std::size_t kMaxRank = 32;

/// Return the number of elements and of bytes of an array. The numbers can overflow unless fits_in_memory() is true.
std::int64_t element_count(const std::vector<std::int64_t>& shape);
std::size_t bytes_of(DType dtype, const std::vector<std::int64_t>& shape);

/// An array of any rank, which owns its elements. New elements are uninitialised.
struct Array {
  DType dtype = DType::none;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< strides in elements
  std::unique_ptr<std::byte[]> data;

  bool present() const { return dtype != DType::none; }
  std::int64_t numel() const { return element_count(shape); }
  std::size_t bytes() const { return bytes_of(dtype, shape); }
};

/// Returns a row-major array with uninitialised elements. Throws std::bad_alloc if memory is short or the array exceeds
/// 2^62 bytes.
Array make_array(DType dtype, std::vector<std::int64_t> shape);

/// Returns whether an array of `shape` has at most 2^62 bytes, counting dimensions of 0 as 1. If so, no product of its
/// dimensions and no stride overflows.
bool fits_in_memory(const std::vector<std::int64_t>& shape, std::size_t element_bytes);

/// Returns a shape as Python writes it, such as "(2, 8)", "(3,)" or "()".
std::string shape_text(const std::vector<std::int64_t>& shape);

/// Reads a whole file. Does not reorder elements: strides express Fortran order. Throws FileError that names the file
/// and the problem.
Array read_npy(const std::string& path);

/// Returns the header of a version 1.0 file with a row-major array: magic, length and dict, padded to a multiple of 64
/// bytes.
std::string npy_header(DType dtype, const std::vector<std::int64_t>& shape);

/// Writes a set of files together: no target changes before all new contents are on the disk.
class NpyWriter {
 public:
  /// A file that commit() has written or will write.
  struct Entry {
    std::string path;
    DType dtype;
    std::vector<std::int64_t> shape;
  };

  /// Makes commit() create this directory if it is missing. Call it before adding files in it.
  void make_directory(const std::string& path);
  /// Adds a file. `array` must be row-major. Throws FileError for bf16, which has no NumPy type.
  void add(const std::string& path, const Array& array);
  /// Renames every file into place.
  void commit();

  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<StagedFile> files_;
  std::vector<Entry> entries_;
  std::vector<std::string> new_directories_;
};

}  // namespace headgate::io
