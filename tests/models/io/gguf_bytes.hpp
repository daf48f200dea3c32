// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "models/io/gguf.hpp"

namespace headgate::testing {

/// Builds the bytes of a GGUF file, part by part, valid or not.
class GgufBytes {
 public:
  template <typename T>
  static std::string raw(T number) {
    std::string out(sizeof(T), '\0');
    std::memcpy(out.data(), &number, sizeof(T));
    return out;
  }
  static std::string text(std::string_view text) { return raw<std::uint64_t>(text.size()) + std::string(text); }

  template <typename T>
  GgufBytes& value(const std::string& key, io::GgufType type, T number) {
    return raw_value(key, type, raw(number));
  }
  GgufBytes& u32(const std::string& key, std::uint32_t number) { return value(key, io::GgufType::u32, number); }
  GgufBytes& f32(const std::string& key, float number) { return value(key, io::GgufType::f32, number); }
  GgufBytes& string(const std::string& key, std::string_view value) {
    return raw_value(key, io::GgufType::string, text(value));
  }
  GgufBytes& strings(const std::string& key, const std::vector<std::string>& values) {
    std::string bytes = raw(io::GgufType::string) + raw<std::uint64_t>(values.size());
    for (const std::string& value : values) bytes += text(value);
    return raw_value(key, io::GgufType::list, bytes);
  }
  GgufBytes& raw_value(const std::string& key, io::GgufType type, const std::string& bytes) {
    values_ += text(key) + raw(type) + bytes;
    ++value_count;
    return *this;
  }

  /// Adds a tensor. `sizes` are row-major; the data is appended at the next multiple of 32.
  GgufBytes& tensor(const std::string& name, const std::vector<std::int64_t>& sizes, std::uint32_t format,
                    const std::string& data) {
    data_.resize((data_.size() + 31) / 32 * 32);
    tensor_at(name, sizes, format, data_.size());
    data_ += data;
    return *this;
  }
  GgufBytes& tensor_at(const std::string& name, const std::vector<std::int64_t>& sizes, std::uint32_t format,
                       std::uint64_t offset) {
    tensors_ += text(name) + raw<std::uint32_t>(static_cast<std::uint32_t>(sizes.size()));
    for (std::size_t i = sizes.size(); i-- > 0;) tensors_ += raw(sizes[i]);
    tensors_ += raw(format) + raw(offset);
    ++tensor_count;
    return *this;
  }
  GgufBytes& f32_tensor(const std::string& name, const std::vector<std::int64_t>& sizes,
                        const std::vector<float>& values) {
    return tensor(name, sizes, 0,
                  std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  }
  GgufBytes& data(const std::string& bytes) {
    data_ += bytes;
    return *this;
  }

  std::string bytes() const {
    std::string out = magic + raw(version) + raw(tensor_count) + raw(value_count) + values_ + tensors_;
    out.resize((out.size() + 31) / 32 * 32);
    return out + data_;
  }

  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::uint64_t tensor_count = 0, value_count = 0;

 private:
  std::string values_, tensors_, data_;
};

}  // namespace headgate::testing
