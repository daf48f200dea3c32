// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headgate/tensor.hpp"
#include "models/io/file_error.hpp"
#include "models/io/file_progress.hpp"
#include "models/io/input_file.hpp"
#include "models/io/mapped_file.hpp"

// The safetensors format, files of named tensors: u64 n (little-endian), n bytes of JSON, data.
//   {"NAME": {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}, …, "__metadata__": {"KEY": "TEXT", …}}
// Offsets count from the first byte of data; tensors cover the data without overlap or gap. Sizes in a
// header are checked against the size of the file before anything is allocated.

namespace headgate::io {

/// A tensor in a file: row-major, little-endian.
struct TensorEntry {
  std::string name;
  DType dtype = DType::none;  ///< none: U8, bytes of a format that other tensors or the model describe
  std::vector<std::int64_t> shape;
  std::size_t offset = 0;  ///< bytes from the first byte of data
  std::size_t bytes = 0;

  std::size_t numel() const { return dtype == DType::none ? bytes : bytes / dtype_bytes(dtype); }
};

class SafetensorsReader {
 public:
  /// Reads and checks the header. Throws FileError, naming the file, the tensor and what is wrong, as do all functions
  /// below.
  explicit SafetensorsReader(const std::string& path);

  const std::string& path() const { return file_.path(); }
  /// Returns the tensors in the order of the data.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  /// Returns null if no tensor has that name.
  const TensorEntry* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Reads all data and compares its checksum with the one in the metadata, if there is one.
  void verify_checksum() const;
  /// out(entry.bytes) = the tensor's bytes.
  void read(const TensorEntry& entry, void* out) const;
  /// Returns the tensor's bytes in memory that the file is mapped into, at any alignment. Maps it in the first call,
  /// which no other may run beside.
  const std::uint8_t* mapped(const TensorEntry& entry) const;
  /// Throws FileError if the mapped file has become shorter.
  void check_whole() const {
    if (map_) map_->check_whole();
  }
  /// out(entry.numel()) = its elements. Throws FileError unless they are F32, F16 or BF16, and all of them finite.
  void read_f32(const TensorEntry& entry, float* out) const;

 private:
  InputFile file_;
  std::size_t data_offset_ = 0;
  std::vector<TensorEntry> tensors_;
  std::map<std::string, const TensorEntry*, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
  mutable std::unique_ptr<MappedFile> map_;
};

/// A tensor to write, row-major.
struct TensorSource {
  std::string name;
  DType dtype = DType::none;
  std::vector<std::int64_t> shape;
  const void* data = nullptr;
};

/// Writes a file atomically; it is on the disk when the function returns. "format": "pt", which transformers requires,
/// and a checksum of the data are added to the metadata. progress(fraction) is called after each tensor. Throws
/// FileError.
void write_safetensors(const std::string& path, const std::vector<TensorSource>& tensors,
                       std::map<std::string, std::string> metadata = {}, const FileProgress& progress = {});

/// Detects damaged data: a change within one aligned 8-byte word always changes the checksum, any other change almost
/// surely. Bytes may be added in pieces.
class Checksum {
 public:
  void add(const void* data, std::size_t bytes);
  /// Returns the checksum of the bytes added so far as 16 hexadecimal digits.
  std::string text() const;

 private:
  void mix(std::uint64_t word);
  void add_byte(std::byte byte);

  std::uint64_t state_ = 0x9E3779B97F4A7C15U;
  std::uint64_t pending_ = 0;  ///< the bytes_ % 8 bytes of a word that is not complete
  std::uint64_t bytes_ = 0;
};

}  // namespace headgate::io
