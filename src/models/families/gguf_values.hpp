// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/io/file_error.hpp"
#include "models/io/gguf.hpp"
#include "models/io/gguf_keys.hpp"
#include "models/io/input_file.hpp"

namespace headgate::models {

/// Reads the keys "NAME.…" of the architecture NAME. Remembers which keys were looked up. finish() throws for any other
/// key that is_harmless_gguf_key() does not accept.
class GgufValues {
 public:
  GgufValues(const io::GgufFile& file, std::string_view architecture)
      : file_(file), architecture_(architecture), prefix_(architecture_ + ".") {}

  const io::GgufFile& file() const { return file_; }

  bool has(std::string_view name) {
    known_.push_back(prefix_ + std::string(name));
    return file_.has(known_.back());
  }
  std::int64_t integer(std::string_view name) {
    has(name);
    return file_.integer(known_.back());
  }
  std::int64_t integer(std::string_view name, std::int64_t otherwise) { return has(name) ? integer(name) : otherwise; }
  /// Returns an integer. Throws io::FileError if it is odd.
  std::int64_t even_integer(std::string_view name, std::int64_t otherwise) {
    const std::int64_t found = integer(name, otherwise);
    if (found % 2 != 0) io::fail(file_.path(), "{}{} is {} but must be even", prefix_, name, found);
    return found;
  }
  double number(std::string_view name) {
    has(name);
    return file_.number(known_.back());
  }
  double number(std::string_view name, double otherwise) { return has(name) ? number(name) : otherwise; }
  std::string string(std::string_view name, const std::string& otherwise) {
    return has(name) ? file_.string(known_.back()) : otherwise;
  }
  bool boolean(std::string_view name, bool otherwise) { return has(name) ? file_.boolean(known_.back()) : otherwise; }
  /// Returns a list of booleans; empty if the key is missing.
  std::vector<bool> booleans(std::string_view name) {
    return has(name) ? file_.booleans(known_.back()) : std::vector<bool>{};
  }
  /// Returns a list of integers; empty if the key is missing. A single integer becomes a list of one.
  std::vector<std::int64_t> integers(std::string_view name) {
    if (!has(name)) return {};
    return is_list() ? file_.integers(known_.back()) : std::vector<std::int64_t>{file_.integer(known_.back())};
  }
  /// Returns a list of numbers; empty if the key is missing. A single number is repeated `count` times.
  std::vector<double> numbers(std::string_view name, std::int64_t count) {
    if (!has(name)) return {};
    if (!is_list()) return std::vector<double>(static_cast<std::size_t>(count), file_.number(known_.back()));
    const std::vector<float> list = file_.numbers(known_.back());
    return {list.begin(), list.end()};
  }
  /// Throws if the key has another value than this integer. Accepts a missing key.
  void require_value(std::string_view name, std::int64_t value) {
    const std::int64_t found = integer(name, value);
    if (found != value) io::fail(file_.path(), "{}{} is {}; only {} is supported", prefix_, name, found, value);
  }
  void finish() const {
    for (const auto& [key, value] : file_.values()) {
      const bool known = !key.starts_with(prefix_) || std::find(known_.begin(), known_.end(), key) != known_.end();
      if (!known && !io::is_harmless_gguf_key(key, architecture_)) {
        io::fail(file_.path(), "{} is not supported", io::printable(key, 80));
      }
    }
  }

 private:
  bool is_list() const { return file_.values().at(known_.back()).type == io::GgufType::list; }

  const io::GgufFile& file_;
  std::string architecture_, prefix_;
  std::vector<std::string> known_;
};

}  // namespace headgate::models
