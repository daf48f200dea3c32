// SPDX-License-Identifier: Apache-2.0
#include "models/io/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "library/core/convert.hpp"
#include "models/io/json.hpp"
#include "models/io/npy.hpp"
#include "models/io/staged_file.hpp"

static_assert(std::endian::native == std::endian::little, "headgate: safetensors are read without byte swapping");

namespace headgate::io {
namespace {

constexpr std::size_t kPreamble = 8;  // size of the length field that precedes the header, a u64
// Maximum size of the header in bytes. A model of 1000 layers, with 12 tensors per layer and two moments per tensor,
// has a header of 4 MiB.
constexpr std::size_t kMaxHeader = std::size_t{1} << 23;
constexpr int kHeaderDepth = 3;  // maximum nesting of brackets: header, tensor, shape
constexpr std::size_t kMaxName = 1024;
constexpr std::size_t kPiece = std::size_t{1} << 20;  // bytes read at a time, a multiple of 8
constexpr const char* kMetadata = "__metadata__";
constexpr const char* kChecksum = "headgate.checksum";

struct DTypeName {
  std::string_view name;
  DType dtype;
};
constexpr std::array<DTypeName, 8> kDTypeNames{{{"F32", DType::f32},
                                                {"F16", DType::f16},
                                                {"BF16", DType::bf16},
                                                {"F64", DType::f64},
                                                {"I32", DType::i32},
                                                {"I64", DType::i64},
                                                {"BOOL", DType::boolean},
                                                {"U8", DType::none}}};

std::string_view name_of(DType dtype) {
  for (const DTypeName& entry : kDTypeNames) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "none";
}

/// Parses the header of a file. Error messages name the file and the tensor.
class HeaderReader {
 public:
  HeaderReader(const std::string& path, std::size_t data_bytes) : path_(path), data_bytes_(data_bytes) {}

  TensorEntry entry(const std::string& name, const Json& value) const {
    const std::string shown = printable(name);
    if (name.empty() || name.size() > kMaxName) fail(path_, "a tensor's name has {} bytes", name.size());
    if (!value.is_object()) fail(path_, "tensor '{}' is not a JSON object", shown);
    for (const auto& item : value.items()) {
      if (item.key() != "dtype" && item.key() != "shape" && item.key() != "data_offsets") {
        fail(path_, "tensor '{}' has an unknown key '{}'", shown, printable(item.key()));
      }
    }
    TensorEntry out;
    out.name = name;
    out.dtype = dtype(shown, member(shown, value, "dtype"));
    out.shape = shape(shown, member(shown, value, "shape"));
    place(out, shown, member(shown, value, "data_offsets"));
    return out;
  }

  std::map<std::string, std::string> metadata(const Json& value) const {
    if (!value.is_object()) fail(path_, "__metadata__ is not a JSON object");
    std::map<std::string, std::string> out;
    for (const auto& item : value.items()) {
      if (!item.value().is_string()) fail(path_, "__metadata__: '{}' is not a string", printable(item.key()));
      out[item.key()] = item.value().get<std::string>();
    }
    return out;
  }

  /// Throws FileError if the tensors leave a gap in the data or overlap. `entries` must be sorted by offset.
  void check_coverage(const std::vector<TensorEntry>& entries) const {
    std::size_t end = 0;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const TensorEntry& entry = entries[i];
      if (entry.offset < end) {
        fail(path_, "tensors '{}' and '{}' overlap", printable(entries[i - 1].name), printable(entry.name));
      }
      if (entry.offset > end)
        fail(path_, "no tensor covers the {} bytes before '{}'", entry.offset - end, printable(entry.name));
      end = entry.offset + entry.bytes;
    }
    if (end != data_bytes_) fail(path_, "trailing data: {} bytes after the last tensor", data_bytes_ - end);
  }

 private:
  const Json& member(const std::string& shown, const Json& value, const char* key) const {
    const auto found = value.find(key);
    if (found == value.end()) fail(path_, "tensor '{}' has no {}", shown, key);
    return *found;
  }

  DType dtype(const std::string& shown, const Json& value) const {
    if (!value.is_string()) fail(path_, "tensor '{}': its dtype is not a string", shown);
    const std::string& text = value.get_ref<const std::string&>();
    for (const DTypeName& entry : kDTypeNames) {
      if (text == entry.name) return entry.dtype;
    }
    fail(path_, "tensor '{}': dtype '{}' is not read; F32 F16 BF16 F64 I32 I64 BOOL U8 are", shown, printable(text));
  }

  std::int64_t count(const std::string& shown, const Json& value, const char* what) const {
    if (!value.is_number_unsigned()) fail(path_, "tensor '{}': {} is not a non-negative integer", shown, what);
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fail(path_, "tensor '{}': {} {} is too large", shown, what, number);
    }
    return value.get<std::int64_t>();
  }

  std::vector<std::int64_t> shape(const std::string& shown, const Json& value) const {
    if (!value.is_array()) fail(path_, "tensor '{}': its shape is not a list", shown);
    if (value.size() > kMaxRank) fail(path_, "tensor '{}': more than {} dimensions", shown, kMaxRank);
    std::vector<std::int64_t> out;
    for (const Json& item : value) out.push_back(count(shown, item, "a dimension"));
    return out;
  }

  void place(TensorEntry& out, const std::string& shown, const Json& value) const {
    if (!value.is_array() || value.size() != 2) fail(path_, "tensor '{}': data_offsets are not two numbers", shown);
    const std::size_t begin = count(shown, value[0], "a data offset");
    const std::size_t end = count(shown, value[1], "a data offset");
    if (begin > end) fail(path_, "tensor '{}' ends at {}, before its start {}", shown, end, begin);
    if (end > data_bytes_) {
      fail(path_, "tensor '{}' ends at byte {} of the data, but the file has {}: truncated", shown, end, data_bytes_);
    }
    out.offset = begin;
    out.bytes = end - begin;
    const std::size_t element_bytes = out.dtype == DType::none ? 1 : dtype_bytes(out.dtype);
    if (!fits_in_memory(out.shape, element_bytes)) {
      fail(path_, "tensor '{}': shape {} is too large", shown, shape_text(out.shape));
    }
    const std::size_t claimed = element_count(out.shape) * element_bytes;
    if (claimed != out.bytes) {
      fail(path_, "tensor '{}': shape {} of {} takes {} bytes, but its offsets span {}", shown, shape_text(out.shape),
           name_of(out.dtype), claimed, out.bytes);
    }
  }

  const std::string& path_;
  std::size_t data_bytes_;
};

/// Returns the text of the header. The next read of `file` then begins at the data.
std::string read_header(const InputFile& file) {
  const std::string& path = file.path();
  if (file.size() < kPreamble) fail(path, "not a safetensors file: only {} bytes", file.size());
  std::uint64_t length = 0;
  file.read(&length, kPreamble);
  if (length > file.size() - kPreamble) {
    fail(path, "not a safetensors file, or truncated: the header claims {} bytes, but {} follow", length,
         file.size() - kPreamble);
  }
  if (length > kMaxHeader) fail(path, "the header claims {} bytes; at most {} are read", length, kMaxHeader);
  std::string text(length, '\0');
  file.read(text.data(), length);
  if (!text.starts_with('{')) fail(path, "not a safetensors file: its header is not a JSON object");
  return text;
}

template <typename T>
void widen(float* out, const std::byte* in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, in + i * sizeof(T), sizeof(T));
    out[i] = to_f32(value);
  }
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& path) : file_(path) {
  const std::string text = read_header(file_);
  data_offset_ = kPreamble + text.size();
  const HeaderReader reader(file_.path(), file_.size() - data_offset_);
  const Json header = parse_json(file_.path(), text, kHeaderDepth);
  for (const auto& item : header.items()) {
    if (item.key() == kMetadata) {
      metadata_ = reader.metadata(item.value());
    } else {
      tensors_.push_back(reader.entry(item.key(), item.value()));
    }
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  reader.check_coverage(tensors_);
  for (const TensorEntry& entry : tensors_) by_name_[entry.name] = &entry;
}

const TensorEntry* SafetensorsReader::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

void SafetensorsReader::verify_checksum() const {
  const auto written = metadata_.find(kChecksum);
  if (written == metadata_.end()) return;
  Checksum checksum;
  const std::size_t total = file_.size() - data_offset_;
  const auto piece = std::make_unique<std::byte[]>(std::min(total, kPiece));
  for (std::size_t at = 0; at < total; at += kPiece) {
    const std::size_t bytes = std::min(kPiece, total - at);
    file_.read_at(piece.get(), bytes, data_offset_ + at);
    checksum.add(piece.get(), bytes);
  }
  if (checksum.text() != written->second) {
    fail(path(), "corrupt: the data's checksum is {}, not {}", checksum.text(), printable(written->second));
  }
}

void SafetensorsReader::read(const TensorEntry& entry, void* out) const {
  file_.read_at(out, entry.bytes, data_offset_ + entry.offset);
}

const std::uint8_t* SafetensorsReader::mapped(const TensorEntry& entry) const {
  if (!map_) map_ = std::make_unique<MappedFile>(path());
  const std::size_t begin = data_offset_ + entry.offset;
  if (begin + entry.bytes > static_cast<std::size_t>(map_->size())) {
    fail(path(), "truncated while it was read: tensor '{}' is missing", printable(entry.name));
  }
  return map_->data() + begin;
}

void SafetensorsReader::read_f32(const TensorEntry& entry, float* out) const {
  if (entry.dtype == DType::f32) {
    read(entry, out);
  } else if (entry.dtype == DType::f16 || entry.dtype == DType::bf16) {
    const auto raw = std::make_unique<std::byte[]>(entry.bytes);
    read(entry, raw.get());
    if (entry.dtype == DType::f16) {
      widen<Float16>(out, raw.get(), entry.numel());
    } else {
      widen<BFloat16>(out, raw.get(), entry.numel());
    }
  } else {
    fail(path(), "tensor '{}' is {}, not F32, F16 or BF16", printable(entry.name), name_of(entry.dtype));
  }
  const float* const end = out + entry.numel();
  const float* const bad = std::find_if(static_cast<const float*>(out), end, [](float x) { return !std::isfinite(x); });
  if (bad != end) fail(path(), "tensor '{}': element {} is {}", printable(entry.name), bad - out, *bad);
}

void Checksum::mix(std::uint64_t word) {
  constexpr std::uint64_t kOdd = 0xBF58476D1CE4E5B9U;
  // The function is bijective in `state_` and in `word`. The result thus changes whenever only one of the two changes.
  state_ = std::rotl((state_ ^ word) * kOdd, 29);
}

void Checksum::add(const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  const auto* const end = at + bytes;
  // Completes the word that the previous call left incomplete. Then adds whole words. Then adds the remaining bytes one
  // by one.
  while (bytes_ % sizeof(pending_) != 0 && at < end) add_byte(*at++);
  for (; end - at >= static_cast<std::ptrdiff_t>(sizeof(pending_));
       at += sizeof(pending_), bytes_ += sizeof(pending_)) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    mix(word);
  }
  while (at < end) add_byte(*at++);
}

void Checksum::add_byte(std::byte byte) {
  pending_ |= static_cast<std::uint64_t>(byte) << (8 * (bytes_ % sizeof(pending_)));
  if (++bytes_ % sizeof(pending_) == 0) mix(std::exchange(pending_, 0));
}

std::string Checksum::text() const {
  Checksum last = *this;
  last.mix(pending_);
  last.mix(bytes_);
  return fmt::format("{:016x}", last.state_);
}

void write_safetensors(const std::string& path, const std::vector<TensorSource>& tensors,
                       std::map<std::string, std::string> metadata,
                       const std::function<void(double fraction)>& progress) {
  std::string entries;
  std::vector<std::size_t> sizes;
  std::size_t end = 0;
  Checksum checksum;
  for (const TensorSource& tensor : tensors) {
    const std::size_t bytes = bytes_of(tensor.dtype, tensor.shape);
    entries += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", Json(tensor.name).dump(),
                           name_of(tensor.dtype), fmt::join(tensor.shape, ","), end, end + bytes);
    end += bytes;
    sizes.push_back(bytes);
    checksum.add(tensor.data, bytes);
  }
  metadata["format"] = "pt";
  metadata[kChecksum] = checksum.text();
  std::string text = fmt::format("{{\"{}\":{}{}}}", kMetadata, Json(metadata).dump(), entries);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // pads the header with spaces to align the data to 8 bytes
  const std::uint64_t length = text.size();
  StagedFile file(path);
  file.write(&length, kPreamble);
  file.write(text.data(), text.size());
  std::size_t written = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    file.write(tensors[i].data, sizes[i]);
    written += sizes[i];
    if (progress) progress(end == 0 ? 1.0 : static_cast<double>(written) / static_cast<double>(end));
  }
  file.commit();
}

}  // namespace headgate::io
