// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/io/file_error.hpp"
#include "models/io/gguf.hpp"
#include "models/io/input_file.hpp"

namespace headgate::models {

/// Reads the values NAME.… of an architecture, and refuses those that nobody asked for.
class GgufValues {
 public:
  GgufValues(const io::GgufFile& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + ".") {}

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
  double number(std::string_view name) {
    has(name);
    return file_.number(known_.back());
  }
  double number(std::string_view name, double otherwise) { return has(name) ? number(name) : otherwise; }
  std::string string(std::string_view name, const std::string& otherwise) {
    return has(name) ? file_.string(known_.back()) : otherwise;
  }
  bool boolean(std::string_view name, bool otherwise) { return has(name) ? file_.boolean(known_.back()) : otherwise; }
  /// Returns a list of true and false; empty if it is missing.
  std::vector<bool> booleans(std::string_view name) {
    return has(name) ? file_.booleans(known_.back()) : std::vector<bool>{};
  }
  /// Accepts the value, whatever it is.
  void ignore(std::string_view name) { has(name); }
  /// Throws unless the integer is missing or has this value.
  void require_value(std::string_view name, std::int64_t value) {
    const std::int64_t found = integer(name, value);
    if (found != value) io::fail(file_.path(), "{}{} is {}; only {} is supported", prefix_, name, found, value);
  }
  void finish() const {
    for (const auto& [key, value] : file_.values()) {
      const bool ours = key.starts_with(prefix_);
      if (ours && std::find(known_.begin(), known_.end(), key) == known_.end()) {
        io::fail(file_.path(), "{} is not supported", io::printable(key, 80));
      }
    }
  }

 private:
  const io::GgufFile& file_;
  std::string prefix_;
  std::vector<std::string> known_;
};

}  // namespace headgate::models
