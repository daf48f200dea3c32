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

// The GGUF format of llama.cpp, versions 2 and 3, little-endian: a header, values by key, descriptions of tensors,
// and from the next multiple of the alignment on the tensors' data.
//   u32 "GGUF", u32 version, u64 tensors, u64 values
//   each value:  string key, u32 type, value; string: u64 bytes, bytes; list: u32 type, u64 count, values
//   each tensor: string name, u32 dimensions, u64 each, the innermost first, u32 format, u64 offset in the data
// Nothing in a file is believed before it is compared with the file's size.
//
// A large model may come in parts, PREFIX-00001-of-0000N.gguf to PREFIX-0000N-of-0000N.gguf, of split.count N and
// split.no 0 to N − 1. The first part has the values, each part some of the tensors.

namespace headgate::io {

enum class GgufType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, list, u64, i64, f64 };

/// Returns "u8", …: what messages call the type.
std::string_view gguf_type_name(GgufType type);

/// A value of the header. Its bytes stay in the mapped file, and GgufFile reads them.
struct GgufValue {
  GgufType type = GgufType::u8;
  GgufType of = GgufType::u8;          ///< of a list's elements, which are not lists
  std::uint64_t count = 1;             ///< of a list; else 1
  const std::uint8_t* data = nullptr;  ///< its first byte
};

/// Locates a tensor in the file.
struct GgufTensor {
  std::string name;
  const GgufFormat* format = nullptr;
  std::vector<std::int64_t> shape;   ///< row-major, the outermost first: the file's dimensions from last to first
  const MappedFile* file = nullptr;  ///< the part that has it
  const std::uint8_t* data = nullptr;
  std::size_t bytes = 0;

  std::int64_t numel() const { return static_cast<std::int64_t>(bytes / format->bytes) * format->numbers; }
};

/// Maps a GGUF file, with its other parts. Every function that reads data first checks that no file has become shorter.
class GgufFile {
 public:
  /// Opens a whole file, or the first of several parts and the others beside it. Reads and checks everything except the
  /// tensors' numbers. Throws FileError, naming the file and what is wrong, as do all functions below.
  explicit GgufFile(const std::string& path);

  /// Returns the path of the file, or of the first part.
  const std::string& path() const { return parts_.front()->path(); }
  std::uint32_t version() const { return version_; }

  /// Returns the tensors, part by part, in the order of the data.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  /// Returns null if no tensor has that name.
  const GgufTensor* find(std::string_view name) const;

  const std::map<std::string, GgufValue, std::less<>>& values() const { return values_; }
  bool has(std::string_view key) const { return values_.contains(key); }

  // Return the value of a key. Throw if the key is missing or its type does not fit: any integer type in range, f32 or
  // f64, ….
  std::int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;  ///< accepts an integer too
  bool boolean(std::string_view key) const;
  std::string string(std::string_view key) const;
  std::vector<std::string> strings(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::vector<bool> booleans(std::string_view key) const;
  std::vector<float> numbers(std::string_view key) const;

  /// out(tensor.numel()) = the tensor's numbers in f32. Throws FileError, which lists the supported formats, for one
  /// that is not widened, and for a number that is not finite.
  void read_f32(const GgufTensor& tensor, float* out) const;
  /// Throws what read_f32() would, without memory for the widened tensor.
  void check_numbers(const GgufTensor& tensor) const;
  /// Throws FileError if a file has become shorter, before tensors are read through their pointers.
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

/// Returns the paths of all parts of a model by the path of one, PREFIX-NNNNN-of-NNNNN.gguf; only `path` if its name is
/// another.
std::vector<std::string> gguf_parts(const std::string& path);

}  // namespace headgate::io
