// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

// Parses numbers given on the command line. A number outside the range of the type is an error.

namespace headgate::cli {

/// Parses a decimal integer, or a hexadecimal one with the prefix "0x".
/// Returns nothing if `text` is not an integer or T cannot represent it.
template <std::integral T>
std::optional<T> read_number(std::string_view text) {
  const int base = text.starts_with("0x") || text.starts_with("0X") ? 16 : 10;
  if (base == 16) text.remove_prefix(2);
  if (base == 16 && text.starts_with('-')) return std::nullopt;
  T value{};
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value, base);
  if (read.ec != std::errc{} || read.ptr != end) return std::nullopt;
  return value;
}

template <std::floating_point T>
std::optional<T> read_number(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  if (read.ec != std::errc{} || read.ptr != end) return std::nullopt;
  return value;
}

/// Returns an empty string if `text` is a number from `least` to `most`. Otherwise returns an error message.
template <typename T>
std::string number_complaint(std::string_view text, T least, T most) {
  const std::optional<T> value = read_number<T>(text);
  if (value && *value >= least && *value <= most) return "";  // comparisons with NaN are false, so NaN is refused
  constexpr std::string_view kKind = std::integral<T> ? "a whole number" : "a number";
  return fmt::format("must be {} from {} to {}, got {}", kKind, least, most, text);
}

/// Parses a number. If that fails, returns nothing and stores an error message in `complaint`.
template <typename T>
std::optional<T> read_number(std::string_view text, std::string& complaint) {
  const std::optional<T> value = read_number<T>(text);
  if (value) return value;
  if constexpr (std::integral<T>) {
    complaint = number_complaint(text, std::numeric_limits<T>::lowest(), std::numeric_limits<T>::max());
  } else {
    complaint = fmt::format("must be a number that f64 holds, got {}", text);
  }
  return std::nullopt;
}

}  // namespace headgate::cli
