// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/io/gguf_formats.hpp"
#include "models/io/mapped_file.hpp"

// Reads the GGUF format of llama.cpp, versions 2 and 3, little-endian. A file consists of:
// - The header: u32 "GGUF", u32 version, u64 number of tensors, u64 number of values.
// - For each value: string key, u32 type, value.
// - For each tensor: string name, u32 number of dimensions, u64 per dimension (innermost first), u32 format, u64
//   offset.
// - The data of the tensors.
//
// The data begins at the next multiple of the alignment. Offsets count from there. A string is a u64 number of bytes,
// followed by the bytes. A list is a u32 type, a u64 count and the elements. The reader checks all sizes and offsets
// against the size of the file before it uses them.
//
// A large model may consist of N parts, PREFIX-00001-of-0000N.gguf to PREFIX-0000N-of-0000N.gguf. Each part has
// split.count = N, its number split.no (0 to N − 1) and some tensors. All other values are in the first part.

namespace headgate::io {

enum class GgufType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, list, u64, i64, f64 };

/// Returns the name of a type for messages, such as "u8".
std::string_view gguf_type_name(GgufType type);

/// Describes a value of the header. The bytes of the value stay in the mapped file.
struct GgufValue {
  GgufType type = GgufType::u8;
  /// Type of the elements of a list; lists do not nest. For a value that is not a list, equal to `type`.
  GgufType of = GgufType::u8;
  std::uint64_t count = 1;             ///< number of elements of a list; 1 for other types
  const std::uint8_t* data = nullptr;  ///< first byte of the value, or of the first element of a list
};

/// Describes the format, shape and location of a tensor in a file.
struct GgufTensor {
  std::string name;
  const GgufFormat* format = nullptr;
  std::vector<std::int64_t> shape;   ///< sizes in row-major order, outermost first; the file has them innermost first
  const MappedFile* file = nullptr;  ///< file that contains the tensor: the whole model or one part
  const std::uint8_t* data = nullptr;
  std::size_t bytes = 0;

  std::int64_t numel() const { return static_cast<std::int64_t>(bytes / format->bytes) * format->numbers; }
};

/// Maps a GGUF file and all its parts into memory. Functions that read data first check that no file has become
/// shorter.
class GgufFile {
 public:
  /// Opens a file, and all other parts if it is the first part of a model. Checks everything except the elements of
  /// tensors. The constructor and the functions below throw FileError, which names the file and the problem.
  explicit GgufFile(const std::string& path);

  /// Returns the path of the file. If the model has parts, this is the first part.
  const std::string& path() const { return parts_.front()->path(); }
  std::uint32_t version() const { return version_; }

  /// Returns all tensors, sorted by part, and within a part by the position of their data.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  /// Returns the tensor with this name, or null.
  const GgufTensor* find(std::string_view name) const;

  const std::map<std::string, GgufValue, std::less<>>& values() const { return values_; }
  bool has(std::string_view key) const { return values_.contains(key); }

  // Each of these functions returns the value of a key. The functions throw FileError if the key is missing or its
  // value has another type. integer() accepts every integer type, and number() accepts f32 and f64.
  std::int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;  ///< accepts integers too
  bool boolean(std::string_view key) const;
  std::string string(std::string_view key) const;
  std::vector<std::string> strings(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::vector<bool> booleans(std::string_view key) const;
  std::vector<float> numbers(std::string_view key) const;

  /// Converts a tensor to f32 and writes it to out(tensor.numel()). Throws FileError if an element is not finite. Also
  /// throws if the format is unsupported, with a message that lists the supported formats.
  void read_f32(const GgufTensor& tensor, float* out) const;
  /// Checks a tensor without storing its numbers. Throws FileError in the same cases as read_f32().
  void check_numbers(const GgufTensor& tensor) const;
  /// Throws FileError if a file has become shorter. Call it before you read tensors through their pointers.
  void check_whole() const {
    for (const auto& part : parts_) part->check_whole();
  }

 private:
  friend class GgufHeader;

  GgufFile() = default;
  void read(const std::string& path);
  void add_other_parts();
  void list_names();

  const GgufValue& at(std::string_view key) const;
  void check_format(const GgufTensor& tensor) const;

  std::vector<std::unique_ptr<const MappedFile>> parts_;
  std::uint32_t version_ = 0;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, const GgufTensor*, std::less<>> by_name_;
  std::map<std::string, GgufValue, std::less<>> values_;
};

/// Returns the paths of all parts of a model, given the path of any part. If `path` does not have the form
/// PREFIX-NNNNN-of-NNNNN.gguf, returns only `path`.
std::vector<std::string> gguf_parts(const std::string& path);

}  // namespace headgate::io
