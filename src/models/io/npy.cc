// SPDX-License-Identifier: Apache-2.0
#include "models/io/npy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "models/io/input_file.hpp"

static_assert(std::endian::native == std::endian::little, "headgate: .npy elements are read without byte swapping");

namespace headgate::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kPreambleV1 = 10;  // magic, version (2 bytes) and header length (u16)
constexpr std::size_t kPreambleV2 = 12;  // as in version 1.0, but the header length is a u32
// A dict with three entries needs less than 1 KiB, even with kMaxRank dimensions of 19 digits. The rest is padding.
constexpr std::size_t kMaxHeader = 65535;

struct DTypeName {
  std::string_view descr;
  DType dtype;
};
constexpr std::array<DTypeName, 7> kDTypeNames{{{"<f2", DType::f16},
                                                {"<f4", DType::f32},
                                                {"<f8", DType::f64},
                                                {"<i4", DType::i32},
                                                {"<i8", DType::i64},
                                                {"|i1", DType::i8},
                                                {"|b1", DType::boolean}}};

struct Header {
  DType dtype = DType::none;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

/// Parses the header's text, a Python dict literal. The dict must have each of the keys descr, fortran_order and shape
/// exactly once, in any order.
class HeaderParser {
 public:
  HeaderParser(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  Header parse() {
    Header header;
    bool has_descr = false;
    bool has_order = false;
    bool has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string_view key = string("a key");
      expect(':');
      if (key == "descr") {
        set_once(has_descr, key);
        header.dtype = dtype();
      } else if (key == "fortran_order") {
        set_once(has_order, key);
        header.fortran_order = boolean();
      } else if (key == "shape") {
        set_once(has_shape, key);
        header.shape = shape();
      } else {
        fail(path_, "header: unknown key '{}'", printable(key));
      }
      if (accept(',')) continue;
      expect('}');
      break;
    }
    if (!has_descr) fail(path_, "header: no 'descr'");
    if (!has_order) fail(path_, "header: no 'fortran_order'");
    if (!has_shape) fail(path_, "header: no 'shape'");
    if (peek() != '\0' || at_ != text_.size()) unexpected("the end of the header");
    return header;
  }

 private:
  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool accept(char c) {
    if (peek() != c || at_ == text_.size()) return false;
    ++at_;
    return true;
  }

  [[noreturn]] void unexpected(std::string_view wanted) const {
    if (at_ >= text_.size()) fail(path_, "header: ends where {} should be", wanted);
    fail(path_, "header: '{}' where {} should be", printable(text_.substr(at_, 16)), wanted);
  }

  void expect(char c) {
    if (!accept(c)) unexpected(fmt::format("'{}'", c));
  }

  void set_once(bool& seen, std::string_view key) const {
    if (seen) fail(path_, "header: duplicate key '{}'", key);
    seen = true;
  }

  std::string_view string(std::string_view wanted) {
    const char quote = peek();
    if (quote != '\'' && quote != '"') unexpected(wanted);
    const std::size_t begin = at_ + 1;
    const std::size_t end = text_.find(quote, begin);
    const std::string_view value = text_.substr(begin, end == std::string_view::npos ? 0 : end - begin);
    if (end == std::string_view::npos || value.find('\\') != std::string_view::npos) unexpected(wanted);
    at_ = end + 1;
    return value;
  }

  DType dtype() {
    if (peek() == '[' || peek() == '(') fail(path_, "a structured dtype is not read");
    const std::string_view descr = string("a dtype");
    for (const DTypeName& name : kDTypeNames) {
      if (descr == name.descr) return name.dtype;
    }
    const char* kind = "";
    if (descr.starts_with('>')) kind = " (big-endian)";
    if (descr.ends_with('O')) kind = " (Python objects)";
    fail(path_, "dtype '{}'{} is not read; <f2 <f4 <f8 <i4 <i8 |i1 |b1 are", printable(descr), kind);
  }

  bool boolean() {
    peek();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return value;
      }
    }
    unexpected("True or False");
  }

  std::int64_t dimension() {
    if (peek() == '-') fail(path_, "header: negative dimension '{}'", printable(text_.substr(at_, 16)));
    const std::size_t begin = at_;
    std::int64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      const int digit = text_[at_] - '0';
      if (value > (std::numeric_limits<std::int64_t>::max() - digit) / 10) {
        fail(path_, "header: dimension '{}' is too large", printable(text_.substr(begin, 24)));
      }
      value = 10 * value + digit;
    }
    const bool leading_zero = at_ - begin > 1 && text_[begin] == '0';
    if (at_ == begin || leading_zero) {
      at_ = begin;
      unexpected("a dimension");
    }
    return value;
  }

  std::vector<std::int64_t> shape() {
    std::vector<std::int64_t> dimensions;
    expect('(');
    while (!accept(')')) {
      dimensions.push_back(dimension());
      if (dimensions.size() > kMaxRank) fail(path_, "header: more than {} dimensions", kMaxRank);
      if (accept(',')) continue;
      // Requires a comma after a single dimension: in Python, (3) is a number, and (3,) is a tuple.
      if (dimensions.size() == 1) unexpected("','");
      expect(')');
      break;
    }
    return dimensions;
  }

  const std::string& path_;
  std::string_view text_;
  std::size_t at_ = 0;
};

std::size_t little_endian(const unsigned char* bytes, std::size_t count) {
  std::size_t value = 0;
  for (std::size_t i = 0; i < count; ++i) value |= std::size_t{bytes[i]} << (8 * i);
  return value;
}

/// Reads the header. Sets `data_offset` to the offset of the data in the file.
Header read_header(const InputFile& file, const std::string& path, std::size_t& data_offset) {
  std::array<unsigned char, kPreambleV2> preamble{};
  if (file.size() < kPreambleV1) fail(path, "not a .npy file: only {} bytes", file.size());
  file.read(preamble.data(), kPreambleV1);
  if (std::memcmp(preamble.data(), kMagic.data(), kMagic.size()) != 0) {
    fail(path, "not a .npy file: it does not begin with \\x93NUMPY");
  }
  const int major = preamble[6];
  const int minor = preamble[7];
  if (major < 1 || major > 3 || minor != 0) fail(path, ".npy version {}.{}; 1.0, 2.0 and 3.0 are read", major, minor);
  std::size_t offset = kPreambleV1;
  if (major >= 2) {
    if (file.size() < kPreambleV2) fail(path, "the file ends within its header");
    file.read(preamble.data() + kPreambleV1, kPreambleV2 - kPreambleV1);
    offset = kPreambleV2;
  }
  const std::size_t length = little_endian(preamble.data() + 8, offset - 8);
  if (length > file.size() - offset) {
    fail(path, "the header claims {} bytes, but {} follow", length, file.size() - offset);
  }
  if (length > kMaxHeader) fail(path, "the header claims {} bytes; at most {} are read", length, kMaxHeader);
  std::string text(length, '\0');
  file.read(text.data(), length);
  if (!text.ends_with('\n')) fail(path, "the header does not end in a newline");
  data_offset = offset + length;
  return HeaderParser(path, text).parse();
}

std::string_view descr_of(DType dtype) {
  for (const DTypeName& name : kDTypeNames) {
    if (name.dtype == dtype) return name.descr;
  }
  return {};
}

std::vector<std::int64_t> order_strides(const std::vector<std::int64_t>& shape, bool fortran_order) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t step = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const std::size_t d = fortran_order ? i : shape.size() - 1 - i;
    strides[d] = step;
    step *= std::max<std::int64_t>(shape[d], 1);
  }
  return strides;
}

}  // namespace

std::int64_t element_count(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  return count;
}

std::size_t bytes_of(DType dtype, const std::vector<std::int64_t>& shape) {
  return element_count(shape) * dtype_bytes(dtype);
}

bool fits_in_memory(const std::vector<std::int64_t>& shape, std::size_t element_bytes) {
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 62;
  std::int64_t bytes = element_bytes;
  for (const std::int64_t n : shape) {
    const std::int64_t factor = std::max<std::int64_t>(n, 1);
    if (factor > kMaxBytes / bytes) return false;
    bytes *= factor;
  }
  return true;
}

Array make_array(DType dtype, std::vector<std::int64_t> shape) {
  if (!fits_in_memory(shape, dtype_bytes(dtype))) throw std::bad_alloc();
  Array array;
  array.dtype = dtype;
  array.strides = order_strides(shape, false);
  array.shape = std::move(shape);
  array.data.reset(new std::byte[array.bytes()]);
  return array;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

Array read_npy(const std::string& path) {
  const InputFile file(path);
  std::size_t data_offset = 0;
  Header header = read_header(file, path, data_offset);
  const std::size_t element_bytes = dtype_bytes(header.dtype);
  if (!fits_in_memory(header.shape, element_bytes)) {
    fail(path, "header: shape {} is too large", shape_text(header.shape));
  }
  Array array;
  array.dtype = header.dtype;
  array.shape = std::move(header.shape);
  array.strides = order_strides(array.shape, header.fortran_order);
  const std::size_t claimed = array.bytes();
  const std::size_t held = file.size() - data_offset;
  if (held != claimed) {
    fail(path, "shape {} of {} takes {} bytes of data, but {} follow the header: {}", shape_text(array.shape),
         descr_of(array.dtype), claimed, held, held < claimed ? "data missing" : "trailing data");
  }
  array.data.reset(new std::byte[claimed]);
  file.read(array.data.get(), claimed);
  if (array.dtype == DType::boolean) {
    const std::byte* begin = array.data.get();
    const std::byte* end = begin + claimed;
    const std::byte* bad = std::find_if(begin, end, [](std::byte b) { return b > std::byte{1}; });
    if (bad != end) {
      fail(path, "byte {} at element {} is not a boolean", static_cast<int>(*bad), bad - begin);
    }
  }
  return array;
}

std::string npy_header(DType dtype, const std::vector<std::int64_t>& shape) {
  constexpr std::size_t kAlignment = 64;
  std::string dict =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", descr_of(dtype), shape_text(shape));
  const std::size_t total = (kPreambleV1 + dict.size() + 1 + kAlignment - 1) / kAlignment * kAlignment;
  dict.resize(total - kPreambleV1 - 1, ' ');
  dict += '\n';
  std::string header(kMagic);
  header += '\x01';
  header += '\0';
  header += static_cast<char>(dict.size() & 0xFF);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

void NpyWriter::make_directory(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) new_directories_.push_back((fs::path(path) / "").parent_path().string());
}

void NpyWriter::add(const std::string& path, const Array& array) {
  if (descr_of(array.dtype).empty()) fail(path, "NumPy has no type for {}", dtype_name(array.dtype));
  std::string stage_in;
  for (const std::string& directory : new_directories_) {
    if (fs::path(path).parent_path() == directory) stage_in = (fs::path(directory).parent_path() / ".").string();
  }
  StagedFile& file = files_.emplace_back(path, Staging::automatic, stage_in);
  const std::string header = npy_header(array.dtype, array.shape);
  file.write(header.data(), header.size());
  file.write(array.data.get(), array.bytes());
  entries_.push_back({path, array.dtype, array.shape});
}

void NpyWriter::commit() {
  for (StagedFile& file : files_) file.flush();
  std::vector<std::string> made;
  try {
    for (const std::string& directory : new_directories_) {
      std::error_code error;
      if (fs::create_directory(directory, error)) made.push_back(directory);
      if (error) fail(directory, "cannot create the directory: {}", error.message());
    }
    for (StagedFile& file : files_) file.commit();
  } catch (const FileError&) {
    std::error_code error;
    // Removes the directories that this call made, if they are empty. fs::remove() fails for a directory that has
    // files.
    for (const std::string& directory : made) fs::remove(directory, error);
    throw;
  }
  files_.clear();
}

}  // namespace headgate::io
