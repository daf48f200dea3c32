// SPDX-License-Identifier: Apache-2.0
#include "models/io/mxfp4.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace headgate::io {
namespace {

float number(std::uint8_t code, std::uint8_t scale) {
  return std::bit_cast<float>(mxfp4_half_scale_bits(scale)) * static_cast<float>(kMxfp4Doubled[code]);
}

/// Largest scale with which all codes have finite f32 values. The largest code is 6, and 6 · 2^(252 − 127) < 2^128.
constexpr std::uint8_t kSafeScale = 252;

bool is_finite(const std::array<float, kMxfp4Numbers>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); });
}

}  // namespace

void widen_mxfp4(float* out, const std::uint8_t* block) {
  for (std::int64_t i = 0; i < kMxfp4CodeBytes; ++i) {
    out[i] = number(block[1 + i] & 0x0F, block[0]);
    out[kMxfp4CodeBytes + i] = number(block[1 + i] >> 4, block[0]);
  }
}

void widen_mxfp4_apart(float* out, const std::uint8_t* codes, std::uint8_t scale) {
  for (std::int64_t i = 0; i < kMxfp4CodeBytes; ++i) {
    out[2 * i] = number(codes[i] & 0x0F, scale);
    out[2 * i + 1] = number(codes[i] >> 4, scale);
  }
}

std::int64_t find_infinite_mxfp4(const std::uint8_t* blocks, std::int64_t count) {
  std::array<float, kMxfp4Numbers> numbers{};
  for (std::int64_t b = 0; b < count; ++b) {
    const std::uint8_t* block = blocks + b * (1 + kMxfp4CodeBytes);
    if (block[0] <= kSafeScale) continue;
    widen_mxfp4(numbers.data(), block);
    if (!is_finite(numbers)) return b;
  }
  return count;
}

std::int64_t find_infinite_mxfp4_apart(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t count) {
  std::array<float, kMxfp4Numbers> numbers{};
  for (std::int64_t b = 0; b < count; ++b) {
    if (scales[b] <= kSafeScale) continue;
    widen_mxfp4_apart(numbers.data(), codes + b * kMxfp4CodeBytes, scales[b]);
    if (!is_finite(numbers)) return b;
  }
  return count;
}

const GgufFormat& mxfp4_apart() {
  static constexpr GgufFormat kFormat{"MXFP4 with scales apart", kMxfp4ApartId, kMxfp4Numbers,
                                      kMxfp4CodeBytes,           nullptr,       nullptr};
  return kFormat;
}

}  // namespace headgate::io
