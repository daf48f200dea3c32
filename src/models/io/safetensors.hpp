// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headgate/tensor.hpp"
#include "models/io/file_error.hpp"
#include "models/io/input_file.hpp"
#include "models/io/mapped_file.hpp"

// Reads and writes safetensors files, which hold named tensors. A file consists of a u64 n (little-endian), n bytes of
// JSON, and the data. The JSON is:
//   {"NAME": {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}, …, "__metadata__": {"KEY": "TEXT", …}}
// Offsets count from the first byte of data. Tensors cover the data without overlap or gap. The reader checks sizes in
// a header against the size of the file before it allocates memory.

namespace headgate::io {

/// Describes a tensor in a file: row-major, little-endian.
struct TensorEntry {
  std::string name;
  DType dtype = DType::none;  ///< `none` for U8 in the file: other tensors or the model tell what the bytes mean
  std::vector<std::int64_t> shape;
  std::size_t offset = 0;  ///< offset in bytes from the first byte of data
  std::size_t bytes = 0;

  std::size_t numel() const { return dtype == DType::none ? bytes : bytes / dtype_bytes(dtype); }
};

class SafetensorsReader {
 public:
  /// Reads and checks the header. The constructor and the functions below throw FileError, which names the file, the
  /// tensor and the problem.
  explicit SafetensorsReader(const std::string& path);

  const std::string& path() const { return file_.path(); }
  /// Returns the tensors, sorted by the position of their data.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  /// Returns the tensor with this name, or null.
  const TensorEntry* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Compares a checksum of all data with the one in the metadata. Throws FileError if they differ. Does nothing if the
  /// metadata has no checksum.
  void verify_checksum() const;
  /// Copies the bytes of a tensor to out(entry.bytes).
  void read(const TensorEntry& entry, void* out) const;
  /// Returns a pointer to the bytes of a tensor in the mapped file, which may be unaligned. The first call maps the
  /// file and must not run concurrently with other calls.
  const std::uint8_t* mapped(const TensorEntry& entry) const;
  /// Throws FileError if the mapped file has become shorter.
  void check_whole() const {
    if (map_) map_->check_whole();
  }
  /// Converts the elements of a tensor to f32 and writes them to out(entry.numel()). Throws FileError if their type is
  /// not F32, F16 or BF16, or if an element is not finite.
  void read_f32(const TensorEntry& entry, float* out) const;

 private:
  InputFile file_;
  std::size_t data_offset_ = 0;
  std::vector<TensorEntry> tensors_;
  std::map<std::string, const TensorEntry*, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
  mutable std::unique_ptr<MappedFile> map_;
};

/// Describes a row-major tensor to write.
struct TensorSource {
  std::string name;
  DType dtype = DType::none;
  std::vector<std::int64_t> shape;
  const void* data = nullptr;
};

/// Writes a file atomically and flushes it to the disk. Adds a checksum of the data to the metadata, and "format":
/// "pt", which transformers requires. Calls progress(fraction) after each tensor. Throws FileError.
void write_safetensors(const std::string& path, const std::vector<TensorSource>& tensors,
                       std::map<std::string, std::string> metadata = {},
                       const std::function<void(double fraction)>& progress = {});

/// Computes a checksum that detects damaged data. A change within one aligned 8-byte word always changes the checksum.
/// Any other change almost certainly does. The data may be added in pieces.
class Checksum {
 public:
  void add(const void* data, std::size_t bytes);
  /// Returns the checksum of all added bytes as 16 hexadecimal digits.
  std::string text() const;

 private:
  void mix(std::uint64_t word);
  void add_byte(std::byte byte);

  std::uint64_t state_ = 0x9E3779B97F4A7C15U;
  std::uint64_t pending_ = 0;  ///< the last bytes_ % 8 bytes, which wait for the rest of their word
  std::uint64_t bytes_ = 0;
};

}  // namespace headgate::io
