// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "headgate/tensor.hpp"
#include "io/file_error.hpp"
#include "io/staged_file.hpp"

// NumPy's .npy files (numpy.lib.format): versions 1.0, 2.0 and 3.0, C or Fortran order, little-endian
// f2 f4 f8 i4 i8 b1. Whatever a file claims is checked against its size before anything is allocated.

namespace headgate::io {

inline constexpr std::size_t kMaxRank = 32;

/// An owned array of any rank, elements uninitialised until written.
struct Array {
  DType dtype = DType::none;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements
  std::unique_ptr<std::byte[]> data;

  bool present() const { return dtype != DType::none; }
  std::int64_t numel() const;
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * dtype_bytes(dtype); }
};

/// Row-major. Throws std::bad_alloc if it cannot be had, a size beyond 2^62 bytes included.
Array make_array(DType dtype, std::vector<std::int64_t> shape);

/// True if an array of `shape`, its dimensions of 0 counted as 1, stays within 2^62 bytes: then no product of its
/// dimensions, and no stride, overflows.
bool fits_in_memory(const std::vector<std::int64_t>& shape, std::size_t element_bytes);

/// "(2, 8)", "(3,)", "()", as Python writes it.
std::string shape_text(const std::vector<std::int64_t>& shape);

/// Reads a whole file. Fortran order becomes strides; the elements stay as they lie in the file.
/// Throws FileError, naming the file and what is wrong with it.
Array read_npy(const std::string& path);

/// The header of a version 1.0 file with a row-major array: magic, length and dict, padded to a multiple of 64 bytes.
std::string npy_header(DType dtype, const std::vector<std::int64_t>& shape);

/// A set of files that are written together: none of them is touched before all of them are on the disk.
class NpyWriter {
 public:
  /// commit() makes this directory if it is missing; files in it are added after this.
  void make_directory(const std::string& path);
  /// `array` is row-major; bf16 has no NumPy type: FileError.
  void add(const std::string& path, const Array& array);
  /// Renames every file into place.
  void commit();

 private:
  std::vector<StagedFile> files_;
  std::string new_directory_;
};

}  // namespace headgate::io
