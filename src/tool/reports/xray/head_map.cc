// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/xray/head_map.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

namespace headgate::xray {

namespace {

std::string base64(const std::vector<std::uint8_t>& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t here = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t word = 0;
    for (std::size_t n = 0; n < 3; ++n) word = word << 8 | (n < here ? bytes[i + n] : 0U);
    for (std::size_t n = 0; n < 4; ++n) out += n <= here ? kDigits[word >> (18 - 6 * n) & 63U] : '=';
  }
  return out;
}

std::size_t triangle(std::int64_t rows) { return static_cast<std::size_t>(rows * (rows + 1) / 2); }

double ratio(double sum, double count) { return count > 0.0 ? sum / count : 0.0; }

}  // namespace

HeadMap::HeadMap(std::int64_t tokens, std::int64_t cells)
    : size_(std::min(tokens, cells)),
      cell_of_(static_cast<std::size_t>(tokens)),
      sums_(triangle(size_)),
      counts_(triangle(size_)),
      key_sums_(static_cast<std::size_t>(tokens)),
      key_counts_(static_cast<std::size_t>(tokens)) {
  for (std::int64_t c = 0; c < size_; ++c) {
    std::fill(cell_of_.begin() + c * tokens / size_, cell_of_.begin() + (c + 1) * tokens / size_,
              static_cast<std::int32_t>(c));
  }
}

std::size_t HeadMap::planned_bytes(std::int64_t tokens, std::int64_t cells) {
  const auto of_tokens = static_cast<std::size_t>(tokens) * (sizeof(std::int32_t) + 2 * sizeof(double));
  return of_tokens + 2 * sizeof(double) * triangle(std::min(tokens, cells));
}

void HeadMap::add_row(std::int64_t i, std::int64_t first, const float* weights) {
  assert(i >= 0 && static_cast<std::size_t>(i) < cell_of_.size() && first >= 0);
  const std::size_t row = triangle(cell_of_[static_cast<std::size_t>(i)]);
  for (std::int64_t j = first; j <= i; ++j) {
    const auto key = static_cast<std::size_t>(j);
    const auto weight = static_cast<double>(weights[j - first]);
    const std::size_t cell = row + static_cast<std::size_t>(cell_of_[key]);
    sums_[cell] += weight;
    counts_[cell] += 1.0;
    key_sums_[key] += weight;
    key_counts_[key] += 1.0;
  }
}

std::vector<double> HeadMap::cells() const {
  std::vector<double> out(sums_.size());
  std::transform(sums_.begin(), sums_.end(), counts_.begin(), out.begin(), ratio);
  return out;
}

std::vector<double> HeadMap::received() const {
  std::vector<double> out(key_sums_.size());
  std::transform(key_sums_.begin(), key_sums_.end(), key_counts_.begin(), out.begin(), ratio);
  return out;
}

std::vector<std::size_t> largest(const std::vector<double>& values, std::size_t count) {
  std::vector<std::size_t> places(values.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  const auto end = places.begin() + static_cast<std::ptrdiff_t>(std::min(count, places.size()));
  std::partial_sort(places.begin(), end, places.end(), [&](std::size_t a, std::size_t b) {
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  });
  places.erase(end, places.end());
  return places;
}

std::string as_bytes(const std::vector<double>& values) {
  std::vector<std::uint8_t> bytes;
  bytes.reserve(values.size());
  for (const double x : values) {
    const double inside = x > 0.0 ? std::min(x, 1.0) : 0.0;
    bytes.push_back(static_cast<std::uint8_t>(std::lround(255.0 * inside)));
  }
  return base64(bytes);
}

std::string as_roots(const std::vector<double>& values) {
  std::vector<double> roots(values.size());
  std::transform(values.begin(), values.end(), roots.begin(), [](double x) { return x > 0.0 ? std::sqrt(x) : 0.0; });
  return as_bytes(roots);
}

}  // namespace headgate::xray
