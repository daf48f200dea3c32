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

// Reads and writes NumPy's .npy files (numpy.lib.format). Supports versions 1.0, 2.0 and 3.0, C and Fortran order, and
// the little-endian types f2 f4 f8 i1 i4 i8 b1. Checks sizes in a header against the size of the file before allocating
// memory.

namespace headgate::io {

inline constexpr std::size_t kMaxRank = 32;

/// Return the number of elements and the number of bytes of an array. The results can overflow if fits_in_memory() is
/// false.
std::int64_t element_count(const std::vector<std::int64_t>& shape);
std::size_t bytes_of(DType dtype, const std::vector<std::int64_t>& shape);

/// An array of any rank that owns its elements.
struct Array {
  DType dtype = DType::none;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< strides in elements
  std::unique_ptr<std::byte[]> data;

  bool present() const { return dtype != DType::none; }
  std::int64_t numel() const { return element_count(shape); }
  std::size_t bytes() const { return bytes_of(dtype, shape); }
};

/// Returns a row-major array with uninitialised elements. Throws std::bad_alloc if memory runs out or the array exceeds
/// 2^62 bytes.
Array make_array(DType dtype, std::vector<std::int64_t> shape);

/// Returns whether an array of `shape` has at most 2^62 bytes. Dimensions of 0 count as 1. If so, no product of
/// dimensions and no stride overflows.
bool fits_in_memory(const std::vector<std::int64_t>& shape, std::size_t element_bytes);

/// Returns a shape as Python writes it, such as "(2, 8)", "(3,)" or "()".
std::string shape_text(const std::vector<std::int64_t>& shape);

/// Reads a whole file. Keeps the order of elements: an array in Fortran order gets other strides. Throws FileError,
/// which names the file and the problem.
Array read_npy(const std::string& path);

/// Returns the header of a version 1.0 file for a row-major array: magic, length and dict, padded to a multiple of 64
/// bytes.
std::string npy_header(DType dtype, const std::vector<std::int64_t>& shape);

/// Writes several files together. Replaces no file before all new contents are on the disk.
class NpyWriter {
 public:
  /// Describes a file that was added.
  struct Entry {
    std::string path;
    DType dtype;
    std::vector<std::int64_t> shape;
  };

  /// Makes commit() create this directory if it does not exist. Must be called before files in the directory are added.
  void make_directory(const std::string& path);
  /// Adds a file. `array` must be row-major. Throws FileError for bf16, because NumPy has no such type.
  void add(const std::string& path, const Array& array);
  /// Flushes all files to the disk, then renames them to their paths.
  void commit();

  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<StagedFile> files_;
  std::vector<Entry> entries_;
  std::vector<std::string> new_directories_;
};

}  // namespace headgate::io
