// SPDX-License-Identifier: Apache-2.0
#include "models/io/gguf.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <system_error>
#include <utility>

#include "library/core/convert.hpp"
#include "models/io/input_file.hpp"

static_assert(std::endian::native == std::endian::little, "headgate: GGUF files are read without byte swapping");

namespace headgate::io {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint64_t kMaxKey = 65535;  // limit in bytes, from the GGUF specification
constexpr std::uint64_t kMaxName = 1024;
constexpr std::uint32_t kMaxDimensions = 4;
constexpr std::uint64_t kMaxValues = std::uint64_t{1} << 16;
constexpr std::uint64_t kMaxTensors = std::uint64_t{1} << 20;
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMaxAlignment = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxNumbers = std::uint64_t{1} << 50;  // maximum number of elements in a tensor
constexpr int kMaxParts = 1024;
constexpr std::size_t kMaxBlock = 256;  // maximum number of elements in a block of any readable format
constexpr std::string_view kAlignment = "general.alignment";

struct TypeRow {
  std::string_view name;
  std::size_t bytes;  ///< size of a value in bytes; 0 for types with values of varying size
};
constexpr std::array<TypeRow, 13> kTypes{{{"u8", 1},
                                          {"i8", 1},
                                          {"u16", 2},
                                          {"i16", 2},
                                          {"u32", 4},
                                          {"i32", 4},
                                          {"f32", 4},
                                          {"bool", 1},
                                          {"string", 0},
                                          {"list", 0},
                                          {"u64", 8},
                                          {"i64", 8},
                                          {"f64", 8}}};

const TypeRow& row_of(GgufType type) { return kTypes[static_cast<std::size_t>(type)]; }

template <typename T>
T load(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

bool is_integer(GgufType type) {
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::u16:
    case GgufType::i16:
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::u64:
    case GgufType::i64: return true;
    default: return false;
  }
}

/// Reads an integer of type `type`. Values of 2^63 or more wrap around to negative numbers.
std::int64_t integer_at(GgufType type, const std::uint8_t* at) {
  switch (type) {
    case GgufType::u8: return *at;
    case GgufType::i8: return static_cast<std::int8_t>(*at);
    case GgufType::u16: return load<std::uint16_t>(at);
    case GgufType::i16: return load<std::int16_t>(at);
    case GgufType::u32: return load<std::uint32_t>(at);
    case GgufType::i32: return load<std::int32_t>(at);
    default: return load<std::int64_t>(at);
  }
}

std::string_view string_at(const std::uint8_t* at) {
  return {reinterpret_cast<const char*>(at + sizeof(std::uint64_t)), load<std::uint64_t>(at)};
}

}  // namespace

std::string_view gguf_type_name(GgufType type) { return row_of(type).name; }

// --- the header --------------------------------------------------------------------------------------------------

/// Parses the header of a file.
class GgufHeader {
 public:
  explicit GgufHeader(GgufFile& out)
      : out_(out), file_(*out.parts_.front()), path_(file_.path()), size_(static_cast<std::size_t>(file_.size())) {}

  void read() {
    check_magic();
    const std::uint64_t tensors = count("tensors", kMaxTensors, kLeastTensor);
    const std::uint64_t values = count("values", kMaxValues, kLeastValue);
    for (std::uint64_t i = 0; i < values; ++i) read_value();
    for (std::uint64_t i = 0; i < tensors; ++i) read_tensor();
    place_data();
  }

 private:
  // Minimum sizes of header entries in bytes. A value has at least the length of its key (8), a type (4) and one byte
  // of data. A tensor has at least the length of its name (8), a count (4), a format (4) and an offset (8).
  static constexpr std::size_t kLeastValue = 8 + 4 + 1;
  static constexpr std::size_t kLeastTensor = 8 + 4 + 4 + 8;

  const std::uint8_t* take(std::size_t bytes, const char* what) {
    if (bytes > size_ - at_)
      fail(path_, "truncated: {} at byte {} takes {} bytes, {} are left", what, at_, bytes, left());
    const std::uint8_t* from = file_.data() + at_;
    at_ += bytes;
    return from;
  }
  std::size_t left() const { return size_ - at_; }

  template <typename T>
  T number(const char* what) {
    return load<T>(take(sizeof(T), what));
  }

  std::string_view string(const char* what) {
    const auto bytes = number<std::uint64_t>(what);
    return {reinterpret_cast<const char*>(take(bytes, what)), bytes};
  }

  void check_magic() {
    if (size_ < kMagic.size() + 4 || std::memcmp(file_.data(), kMagic.data(), kMagic.size()) != 0) {
      fail(path_, "not a GGUF file");
    }
    at_ = kMagic.size();
    out_.version_ = number<std::uint32_t>("the version");
    if (out_.version_ == 2 || out_.version_ == 3) return;
    if ((out_.version_ & 0xFFFFU) == 0) fail(path_, "GGUF in big-endian order is not read");
    fail(path_, "GGUF version {} is not read; 2 and 3 are", out_.version_);
  }

  std::uint64_t count(const char* what, std::uint64_t most, std::size_t least_bytes) {
    const auto number_of = number<std::uint64_t>(what);
    if (number_of > most) fail(path_, "{} {}; at most {} are read", number_of, what, most);
    if (number_of * least_bytes > left()) {
      fail(path_, "truncated: {} {}, but only {} bytes are left", number_of, what, left());
    }
    return number_of;
  }

  GgufType type(const std::string& shown) {
    const auto id = number<std::uint32_t>("a type");
    if (id >= kTypes.size()) fail(path_, "'{}' has the unknown type {}", shown, id);
    return static_cast<GgufType>(id);
  }

  void read_value() {
    const std::string_view key = string("a key");
    const std::string shown = printable(key);
    if (key.empty() || key.size() > kMaxKey) fail(path_, "a key has {} bytes", key.size());
    GgufValue value;
    value.type = value.of = type(shown);
    if (value.type == GgufType::list) {
      value.of = type(shown);
      if (value.of == GgufType::list) fail(path_, "'{}' is a list of lists, which is not read", shown);
      value.count = number<std::uint64_t>("a list");
    }
    value.data = file_.data() + at_;
    skip(value, shown);
    if (!out_.values_.emplace(key, value).second) fail(path_, "duplicate key '{}'", shown);
  }

  /// Moves past the elements of a value. Throws FileError if the file is too short or a boolean is neither 0 nor 1.
  void skip(const GgufValue& value, const std::string& shown) {
    const std::size_t bytes = row_of(value.of).bytes;
    const std::size_t least = bytes == 0 ? sizeof(std::uint64_t) : bytes;
    if (value.count > left() / least)
      fail(path_, "truncated: '{}' has {} elements, {} bytes are left", shown, value.count, left());
    if (bytes > 0) {
      const std::uint8_t* from = take(bytes * value.count, "a value");
      if (value.of != GgufType::boolean) return;
      const auto* bad = std::find_if(from, from + value.count, [](std::uint8_t byte) { return byte > 1; });
      if (bad != from + value.count) {
        fail(path_, "'{}' has a boolean of {}, neither 0 nor 1", shown, static_cast<int>(*bad));
      }
      return;
    }
    for (std::uint64_t i = 0; i < value.count; ++i) string("a string");
  }

  void read_tensor() {
    const std::string_view name = string("a tensor's name");
    if (name.empty() || name.size() > kMaxName) fail(path_, "a tensor's name has {} bytes", name.size());
    GgufTensor tensor;
    tensor.name = name;
    const std::string shown = printable_name(name);
    const auto dimensions = number<std::uint32_t>("a tensor's dimensions");
    if (dimensions == 0 || dimensions > kMaxDimensions) {
      fail(path_, "tensor '{}' has {} dimensions, not 1 to {}", shown, dimensions, kMaxDimensions);
    }
    std::uint64_t numel = 1;
    for (std::uint32_t i = 0; i < dimensions; ++i) {
      const auto size = number<std::uint64_t>("a tensor's dimensions");
      if (size == 0 || size > kMaxNumbers / numel) fail(path_, "tensor '{}': dimension {} is {}", shown, i, size);
      numel *= size;
      tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
    }
    const auto format = number<std::uint32_t>("a tensor's format");
    tensor.format = find_gguf_format(format);
    if (tensor.format == nullptr) {
      fail(path_, "tensor '{}' is of format {}, which is not known; {} are read", shown, format,
           widened_gguf_formats());
    }
    const std::int64_t block = tensor.format->numbers;
    if (tensor.shape.back() % block != 0) {
      fail(path_, "tensor '{}': rows of {} numbers are not whole blocks of {}, which hold {}", shown,
           tensor.shape.back(), tensor.format->word, block);
    }
    tensor.bytes = numel / static_cast<std::uint64_t>(block) * tensor.format->bytes;
    offsets_.push_back(number<std::uint64_t>("a tensor's offset"));
    out_.tensors_.push_back(std::move(tensor));
  }

  std::uint64_t alignment() const {
    if (!out_.has(kAlignment)) return kDefaultAlignment;
    const std::int64_t bytes = out_.integer(kAlignment);
    if (bytes < 1 || static_cast<std::uint64_t>(bytes) > kMaxAlignment ||
        !std::has_single_bit(static_cast<std::uint64_t>(bytes))) {
      fail(path_, "{} is {}, not a power of two up to {}", kAlignment, bytes, kMaxAlignment);
    }
    return static_cast<std::uint64_t>(bytes);
  }

  /// Computes the tensors' pointers from their offsets. Throws FileError for a tensor that is not aligned, lies outside
  /// the file or overlaps another tensor.
  void place_data() {
    const std::uint64_t align = alignment();
    const std::uint64_t start = (at_ + align - 1) / align * align;
    const std::uint64_t data = start <= size_ ? size_ - start : 0;
    for (std::size_t i = 0; i < offsets_.size(); ++i) {
      GgufTensor& tensor = out_.tensors_[i];
      const std::string shown = printable(tensor.name);
      if (offsets_[i] % align != 0)
        fail(path_, "tensor '{}' is at offset {}, not a multiple of {}", shown, offsets_[i], align);
      if (offsets_[i] > data || tensor.bytes > data - offsets_[i]) {
        fail(path_, "truncated: tensor '{}' takes {} bytes from {} on, the data has {}", shown, tensor.bytes,
             offsets_[i], data);
      }
      tensor.file = &file_;
      tensor.data = file_.data() + start + offsets_[i];
    }
    auto& tensors = out_.tensors_;
    std::sort(tensors.begin(), tensors.end(), [](const GgufTensor& a, const GgufTensor& b) { return a.data < b.data; });
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (i > 0 && tensors[i].data < tensors[i - 1].data + tensors[i - 1].bytes) {
        fail(path_, "tensors '{}' and '{}' overlap", printable(tensors[i - 1].name), printable(tensors[i].name));
      }
    }
  }

  GgufFile& out_;
  const MappedFile& file_;
  const std::string& path_;
  std::size_t size_;
  std::size_t at_ = 0;
  std::vector<std::uint64_t> offsets_;
};

void GgufFile::read(const std::string& path) {
  parts_.push_back(std::make_unique<const MappedFile>(path));
  check_whole();
  GgufHeader(*this).read();
}

void GgufFile::list_names() {
  for (const GgufTensor& tensor : tensors_) {
    if (!by_name_.emplace(tensor.name, &tensor).second) {
      fail(tensor.file->path(), "duplicate tensor '{}'", printable(tensor.name));
    }
  }
}

GgufFile::GgufFile(const std::string& path) {
  read(path);
  add_other_parts();
  list_names();
}

// --- parts -------------------------------------------------------------------------------------------------------

namespace {

constexpr std::string_view kNumber = "split.no", kCount = "split.count", kTensors = "split.tensors.count";

/// Returns the ending of a part's path, such as "-00001-of-00003.gguf".
std::string part_suffix(std::int64_t number, std::int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number, count);
}

}  // namespace

std::vector<std::string> gguf_parts(const std::string& path) {
  const std::size_t suffix = part_suffix(1, 1).size();
  if (path.size() <= suffix) return {path};
  const std::string end = path.substr(path.size() - suffix);
  const auto digits = [&end](std::size_t at) { return std::atoi(end.substr(at, 5).c_str()); };
  const int number = digits(1), count = digits(10);
  if (number < 1 || number > count || count > kMaxParts || end != part_suffix(number, count)) return {path};
  std::vector<std::string> out;
  for (int part = 1; part <= count; ++part) {
    out.push_back(path.substr(0, path.size() - suffix) + part_suffix(part, count));
  }
  return out;
}

/// Opens the other parts of a model. The first part must already be open.
void GgufFile::add_other_parts() {
  const std::int64_t count = has(kCount) ? integer(kCount) : 1;
  if (count <= 1) return;
  const std::int64_t number = integer(kNumber);
  const std::vector<std::string> paths = gguf_parts(path());
  const bool named =
      number >= 0 && number < count && std::ssize(paths) == count && paths[static_cast<std::size_t>(number)] == path();
  if (!named) {
    fail(path(),
         "{} is {} and {} is {}, but the name does not end in {}: the parts of a model are found by their names",
         kNumber, number, kCount, count, part_suffix(std::clamp<std::int64_t>(number, 0, kMaxParts) + 1, count));
  }
  if (number != 0) {
    fail(path(), "is part {} of {}: give the first one, {}", number + 1, count, shown_path(paths.front()));
  }
  for (std::int64_t i = 1; i < count; ++i) {
    const std::string& next = paths[static_cast<std::size_t>(i)];
    std::error_code error;
    if (!std::filesystem::exists(next, error)) {
      fail(path(), "is part 1 of {}, and part {}, {}, is not there: put all parts into one directory", count, i + 1,
           shown_path(next));
    }
    GgufFile part;
    part.read(next);
    for (const auto& [key, expected] : {std::pair{kNumber, i}, std::pair{kCount, count}}) {
      const std::int64_t found = part.integer(key);
      if (found != expected) fail(next, "{} is {}, but its name says {}", key, found, expected);
    }
    parts_.push_back(std::move(part.parts_.front()));
    std::move(part.tensors_.begin(), part.tensors_.end(), std::back_inserter(tensors_));
  }
  const std::int64_t tensors = has(kTensors) ? integer(kTensors) : std::ssize(tensors_);
  if (tensors != std::ssize(tensors_)) {
    fail(path(), "{} is {}, but the {} parts have {} tensors", kTensors, tensors, count, tensors_.size());
  }
}

// --- values ------------------------------------------------------------------------------------------------------

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const GgufValue& GgufFile::at(std::string_view key) const {
  check_whole();
  const auto found = values_.find(key);
  if (found == values_.end()) fail(path(), "{} is missing", key);
  return found->second;
}

std::int64_t GgufFile::integer(std::string_view key) const {
  const GgufValue& value = at(key);
  if (!is_integer(value.type)) fail(path(), "{} is a {}, not an integer", key, gguf_type_name(value.type));
  const std::int64_t integer = integer_at(value.type, value.data);
  if (value.type == GgufType::u64 && integer < 0)
    fail(path(), "{} is {}, too large", key, load<std::uint64_t>(value.data));
  return integer;
}

double GgufFile::number(std::string_view key) const {
  const GgufValue& value = at(key);
  if (is_integer(value.type)) return static_cast<double>(integer(key));
  if (value.type != GgufType::f32 && value.type != GgufType::f64) {
    fail(path(), "{} is a {}, not a number", key, gguf_type_name(value.type));
  }
  const double number =
      value.type == GgufType::f32 ? static_cast<double>(load<float>(value.data)) : load<double>(value.data);
  if (!std::isfinite(number)) fail(path(), "{} is {}", key, number);
  return number;
}

bool GgufFile::boolean(std::string_view key) const {
  const GgufValue& value = at(key);
  if (value.type != GgufType::boolean) fail(path(), "{} is a {}, not a boolean", key, gguf_type_name(value.type));
  return *value.data != 0;
}

std::string GgufFile::string(std::string_view key) const {
  const GgufValue& value = at(key);
  if (value.type != GgufType::string) fail(path(), "{} is a {}, not a string", key, gguf_type_name(value.type));
  return std::string(string_at(value.data));
}

std::vector<std::string> GgufFile::strings(std::string_view key) const {
  const GgufValue& value = at(key);
  if (value.type != GgufType::list || value.of != GgufType::string) fail(path(), "{} is not a list of strings", key);
  std::vector<std::string> out;
  const std::uint8_t* at = value.data;
  for (std::uint64_t i = 0; i < value.count; ++i) {
    out.emplace_back(string_at(at));
    at += sizeof(std::uint64_t) + out.back().size();
  }
  return out;
}

std::vector<std::int64_t> GgufFile::integers(std::string_view key) const {
  const GgufValue& value = at(key);
  if (value.type != GgufType::list || !is_integer(value.of)) fail(path(), "{} is not a list of integers", key);
  std::vector<std::int64_t> out;
  for (std::uint64_t i = 0; i < value.count; ++i) {
    out.push_back(integer_at(value.of, value.data + i * row_of(value.of).bytes));
    if (value.of == GgufType::u64 && out.back() < 0) fail(path(), "{}: element {} is too large", key, i);
  }
  return out;
}

std::vector<bool> GgufFile::booleans(std::string_view key) const {
  const GgufValue& value = at(key);
  if (value.type != GgufType::list || value.of != GgufType::boolean) fail(path(), "{} is not a list of booleans", key);
  std::vector<bool> out;
  for (std::uint64_t i = 0; i < value.count; ++i) out.push_back(value.data[i] != 0);
  return out;
}

std::vector<float> GgufFile::numbers(std::string_view key) const {
  const GgufValue& value = at(key);
  if (value.type != GgufType::list || value.of != GgufType::f32) fail(path(), "{} is not a list of f32", key);
  std::vector<float> out(value.count);
  if (!out.empty()) std::memcpy(out.data(), value.data, out.size() * sizeof(float));
  return out;
}

// --- tensors -----------------------------------------------------------------------------------------------------

void GgufFile::check_format(const GgufTensor& tensor) const {
  if (tensor.format->widen != nullptr) return;
  fail(tensor.file->path(), "tensor '{}' is {}, which is not read; {} are", printable(tensor.name), tensor.format->word,
       widened_gguf_formats());
}

void GgufFile::read_f32(const GgufTensor& tensor, float* out) const {
  check_format(tensor);
  tensor.file->check_whole();
  widen_blocks(*tensor.format, out, tensor.data, tensor.numel() / tensor.format->numbers);
  const float* const end = out + tensor.numel();
  const float* const bad = std::find_if(static_cast<const float*>(out), end, [](float x) { return !std::isfinite(x); });
  if (bad != end) fail(tensor.file->path(), "tensor '{}': element {} is {}", printable(tensor.name), bad - out, *bad);
}

void GgufFile::check_numbers(const GgufTensor& tensor) const {
  check_format(tensor);
  tensor.file->check_whole();
  const GgufFormat& format = *tensor.format;
  const std::int64_t count = tensor.numel() / format.numbers, bad = format.find_not_finite(tensor.data, count);
  if (bad == count) return;
  std::array<float, kMaxBlock> numbers{};
  widen_blocks(format, numbers.data(), tensor.data + static_cast<std::size_t>(bad) * format.bytes, 1);
  const auto* const found = std::find_if(numbers.begin(), numbers.end(), [](float x) { return !std::isfinite(x); });
  fail(tensor.file->path(), "tensor '{}': element {} is {}", printable(tensor.name),
       bad * format.numbers + (found - numbers.begin()), *found);
}

}  // namespace headgate::io
