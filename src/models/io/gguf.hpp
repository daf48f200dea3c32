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

// Reads the GGUF format of llama.cpp, versions 2 and 3, little-endian:
//
//   header      | u32 "GGUF", u32 version, u64 number of tensors, u64 number of values
//   each value  | string key, u32 type, value
//   each tensor | string name, u32 number of dimensions, u64 per dimension (innermost first), u32 format, u64 offset
//   data        | the tensors; begins at the next multiple of the alignment, from which offsets count
//
// A string is a u64 number of bytes and then the bytes. A list is a u32 type, a u64 count and then the elements. All
// sizes and offsets are checked against the size of the file before they are used.
//
// A large model may come in parts, PREFIX-00001-of-0000N.gguf to PREFIX-0000N-of-0000N.gguf. Their values have
// split.count = N and split.no = 0 to N − 1. The first part has all other values, and each part has some tensors.

namespace headgate::io {

enum class GgufType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, list, u64, i64, f64 };

/// Returns the name of a type for messages, such as "u8".
std::string_view gguf_type_name(GgufType type);

/// A value of the header. GgufFile reads it from the mapped file, where its bytes stay.
struct GgufValue {
  GgufType type = GgufType::u8;
  GgufType of = GgufType::u8;  ///< of a list: type of its elements, which cannot be lists; otherwise equal to `type`
  std::uint64_t count = 1;     ///< of a list: number of its elements; otherwise 1
  const std::uint8_t* data = nullptr;  ///< first byte of the value, or of a list's elements
};

/// Format, shape and location of a tensor in a file.
struct GgufTensor {
  std::string name;
  const GgufFormat* format = nullptr;
  std::vector<std::int64_t> shape;   ///< row-major: the outermost dimension comes first, unlike in the file
  const MappedFile* file = nullptr;  ///< the file that contains the tensor: a whole model, or one part of it
  const std::uint8_t* data = nullptr;
  std::size_t bytes = 0;

  std::int64_t numel() const { return static_cast<std::int64_t>(bytes / format->bytes) * format->numbers; }
};

/// Maps a GGUF file, and all its parts, into memory. Every function that reads data first checks that no file has
/// become shorter.
class GgufFile {
 public:
  /// Opens a whole file, or all parts of a model given the first one. Checks everything except the elements of tensors.
  /// This and the functions below throw FileError, which names the file and the problem.
  explicit GgufFile(const std::string& path);

  /// Returns the path of the file, or of the first part.
  const std::string& path() const { return parts_.front()->path(); }
  std::uint32_t version() const { return version_; }

  /// Returns all tensors, sorted by part and then by the position of their data.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  /// Returns the tensor with that name, or null if there is none.
  const GgufTensor* find(std::string_view name) const;

  const std::map<std::string, GgufValue, std::less<>>& values() const { return values_; }
  bool has(std::string_view key) const { return values_.contains(key); }

  // These functions return the value of a key. They throw FileError if the key is missing or has another type. Integers
  // may have any integer type; number() reads f32 and f64.
  std::int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;  ///< accepts an integer too
  bool boolean(std::string_view key) const;
  std::string string(std::string_view key) const;
  std::vector<std::string> strings(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::vector<bool> booleans(std::string_view key) const;
  std::vector<float> numbers(std::string_view key) const;

  /// Converts a tensor to f32 in out(tensor.numel()). Throws FileError for a number that is not finite, and for an
  /// unsupported format; the message lists the supported ones.
  void read_f32(const GgufTensor& tensor, float* out) const;
  /// Throws FileError in the same cases as read_f32(), but needs no memory for the converted tensor.
  void check_numbers(const GgufTensor& tensor) const;
  /// Throws FileError if a file has become shorter. Call it before tensors are read through their pointers.
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

/// Returns the paths of all parts of a model, given the path of one part, PREFIX-NNNNN-of-NNNNN.gguf. Returns only
/// `path` if its name has another form.
std::vector<std::string> gguf_parts(const std::string& path);

}  // namespace headgate::io
