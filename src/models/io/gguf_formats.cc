// SPDX-License-Identifier: Apache-2.0
#include "models/io/gguf_formats.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>

#include "library/core/convert.hpp"
#include "models/io/mxfp4.hpp"

namespace headgate::io {
namespace {

constexpr int kSmall = 32;   // elements in a block of Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0
constexpr int kSuper = 256;  // elements in a block of Q4_K, Q5_K and Q6_K

template <typename T>
T load(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

float half(const std::uint8_t* at) { return to_f32(load<Float16>(at)); }

void widen_f32(float* out, const std::uint8_t* block) { *out = load<float>(block); }
void widen_f16(float* out, const std::uint8_t* block) { *out = half(block); }
void widen_bf16(float* out, const std::uint8_t* block) { *out = to_f32(load<BFloat16>(block)); }

/// Converts a block of Q8_0: element = d · q, with the scale d.
void widen_q8_0(float* out, const std::uint8_t* block) {
  const float d = half(block);
  for (int i = 0; i < kSmall; ++i) out[i] = static_cast<float>(static_cast<std::int8_t>(block[2 + i])) * d;
}

/// Returns element i of 32 elements of 4 bits. The low nibbles hold elements 0 to 15, the high nibbles elements 16 to
/// 31.
int nibble(const std::uint8_t* bytes, int i) {
  const int count = kSmall / 2;
  return i < count ? bytes[i] & 0x0F : bytes[i - count] >> 4;
}

int bit(std::uint32_t bits, int i) { return static_cast<int>((bits >> i) & 1U); }

/// Converts a block of Q4_0: element = d · (q − 8), with the scale d.
void widen_q4_0(float* out, const std::uint8_t* block) {
  const float d = half(block);
  for (int i = 0; i < kSmall; ++i) out[i] = d * static_cast<float>(nibble(block + 2, i) - 8);
}

/// Converts a block of Q4_1: element = d · q + m, with the scale d and the minimum m. Rounds the product before the
/// addition, as all functions below do.
void widen_q4_1(float* out, const std::uint8_t* block) {
  const float d = half(block), m = half(block + 2);
  for (int i = 0; i < kSmall; ++i) {
    const float product = d * static_cast<float>(nibble(block + 4, i));
    out[i] = product + m;
  }
}

/// Converts a block of Q5_0: element = d · (q − 16), with the scale d. One 32-bit word holds the highest bit of every
/// 5-bit q.
void widen_q5_0(float* out, const std::uint8_t* block) {
  const float d = half(block);
  const auto high = load<std::uint32_t>(block + 2);
  for (int i = 0; i < kSmall; ++i) {
    out[i] = d * static_cast<float>((nibble(block + 6, i) | bit(high, i) << 4) - 16);
  }
}

/// Converts a block of Q5_1: element = d · q + m, with the scale d and the minimum m.
void widen_q5_1(float* out, const std::uint8_t* block) {
  const float d = half(block), m = half(block + 2);
  const auto high = load<std::uint32_t>(block + 4);
  for (int i = 0; i < kSmall; ++i) {
    const float product = d * static_cast<float>(nibble(block + 8, i) | bit(high, i) << 4);
    out[i] = product + m;
  }
}

/// Unpacks the scales and minima of the 8 groups of a super-block. They have 6 bits each and take 12 bytes.
struct GroupScales {
  std::array<int, 8> scale{}, least{};

  explicit GroupScales(const std::uint8_t* bytes) {
    for (int g = 0; g < 4; ++g) {
      scale[g] = bytes[g] & 0x3F;
      least[g] = bytes[g + 4] & 0x3F;
      scale[g + 4] = (bytes[g + 8] & 0x0F) | (bytes[g] >> 6 << 4);
      least[g + 4] = bytes[g + 8] >> 4 | (bytes[g + 4] >> 6 << 4);
    }
  }
};

/// Converts a block of Q4_K or Q5_K: element = d · scale · q − dmin · least. Each group of 32 elements has its own
/// factors `scale` and `least`. q has 4 bits in Q4_K and 5 bits in Q5_K. `low` holds the low 4 bits of each q. In Q5_K,
/// bit g of fifth[i] is the fifth bit of element i of group g. In Q4_K, `fifth` is null.
void widen_groups(float* out, const std::uint8_t* block, const std::uint8_t* fifth, const std::uint8_t* low) {
  const float d = half(block), dmin = half(block + 2);
  const GroupScales groups(block + 4);
  for (int g = 0; g < kSuper / 32; ++g) {
    const float step = d * static_cast<float>(groups.scale[g]);
    const float offset = dmin * static_cast<float>(groups.least[g]);
    for (int i = 0; i < 32; ++i) {
      int q = low[g / 2 * 32 + i] >> (g % 2 * 4) & 0x0F;
      if (fifth != nullptr) q |= (fifth[i] >> g & 1) << 4;
      const float product = step * static_cast<float>(q);
      out[g * 32 + i] = product - offset;
    }
  }
}

void widen_q4_k(float* out, const std::uint8_t* block) { widen_groups(out, block, nullptr, block + 16); }
void widen_q5_k(float* out, const std::uint8_t* block) { widen_groups(out, block, block + 16, block + 48); }

/// Converts a block of Q6_K: element = d · scale · (q − 32). Each group of 16 elements has its own 8-bit `scale`. q has
/// 6 bits: ql holds the low four, and qh the high two.
void widen_q6_k(float* out, const std::uint8_t* block) {
  const std::uint8_t *ql = block, *qh = block + 128, *scales = block + 192;
  const float d = half(block + 208);
  for (int i = 0; i < kSuper; ++i) {
    const int part = i / 128, within = i % 128;  // each half of a block has 64 bytes of ql and 32 of qh
    const int low = ql[part * 64 + within % 64] >> (within / 64 * 4) & 0x0F;
    const int high = qh[part * 32 + within % 32] >> (within / 32 * 2) & 0x03;
    const float step = d * static_cast<float>(static_cast<std::int8_t>(scales[i / 16]));
    out[i] = step * static_cast<float>((low | high << 4) - 32);
  }
}

bool is_finite_f32(const std::uint8_t* block) { return std::isfinite(load<float>(block)); }
bool is_finite_bf16(const std::uint8_t* block) { return std::isfinite(to_f32(load<BFloat16>(block))); }

/// Returns whether all f16 numbers of a block are finite. kAt are the byte offsets of these numbers. An f16 number is
/// infinite or NaN if all bits of its exponent are set.
template <std::size_t... kAt>
bool has_finite_half(const std::uint8_t* block) {
  constexpr std::uint16_t kExponent = 0x7C00;
  return (((load<std::uint16_t>(block + kAt) & kExponent) != kExponent) && ...);
}

/// Returns the index of the first block for which kIsFinite() is false. Returns `count`, the number of blocks, if there
/// is none.
template <std::int64_t kBytes, bool (*kIsFinite)(const std::uint8_t*)>
std::int64_t find_block(const std::uint8_t* blocks, std::int64_t count) {
  for (std::int64_t b = 0; b < count; ++b) {
    if (!kIsFinite(blocks + b * kBytes)) return b;
  }
  return count;
}

constexpr std::array<GgufFormat, 34> kFormats{
    {{"F32", 0, 1, 4, widen_f32, find_block<4, is_finite_f32>},
     {"F16", 1, 1, 2, widen_f16, find_block<2, has_finite_half<0>>},
     {"BF16", 30, 1, 2, widen_bf16, find_block<2, is_finite_bf16>},
     {"Q8_0", 8, 32, 34, widen_q8_0, find_block<34, has_finite_half<0>>},
     {"Q4_0", 2, 32, 18, widen_q4_0, find_block<18, has_finite_half<0>>},
     {"Q4_1", 3, 32, 20, widen_q4_1, find_block<20, has_finite_half<0, 2>>},
     {"Q5_0", 6, 32, 22, widen_q5_0, find_block<22, has_finite_half<0>>},
     {"Q5_1", 7, 32, 24, widen_q5_1, find_block<24, has_finite_half<0, 2>>},
     {"Q4_K", 12, 256, 144, widen_q4_k, find_block<144, has_finite_half<0, 2>>},
     {"Q5_K", 13, 256, 176, widen_q5_k, find_block<176, has_finite_half<0, 2>>},
     {"Q6_K", 14, 256, 210, widen_q6_k, find_block<210, has_finite_half<208>>},
     {"MXFP4", 39, 32, 17, widen_mxfp4, find_infinite_mxfp4},
     {"Q8_1", 9, 32, 40, nullptr, nullptr},
     {"Q2_K", 10, 256, 84, nullptr, nullptr},
     {"Q3_K", 11, 256, 110, nullptr, nullptr},
     {"Q8_K", 15, 256, 292, nullptr, nullptr},
     {"IQ2_XXS", 16, 256, 66, nullptr, nullptr},
     {"IQ2_XS", 17, 256, 74, nullptr, nullptr},
     {"IQ3_XXS", 18, 256, 98, nullptr, nullptr},
     {"IQ1_S", 19, 256, 50, nullptr, nullptr},
     {"IQ4_NL", 20, 32, 18, nullptr, nullptr},
     {"IQ3_S", 21, 256, 110, nullptr, nullptr},
     {"IQ2_S", 22, 256, 82, nullptr, nullptr},
     {"IQ4_XS", 23, 256, 136, nullptr, nullptr},
     {"I8", 24, 1, 1, nullptr, nullptr},
     {"I16", 25, 1, 2, nullptr, nullptr},
     {"I32", 26, 1, 4, nullptr, nullptr},
     {"I64", 27, 1, 8, nullptr, nullptr},
     {"F64", 28, 1, 8, nullptr, nullptr},
     {"IQ1_M", 29, 256, 56, nullptr, nullptr},
     {"TQ1_0", 34, 256, 54, nullptr, nullptr},
     {"TQ2_0", 35, 256, 66, nullptr, nullptr},
     {"NVFP4", 40, 64, 36, nullptr, nullptr},
     {"Q1_0", 41, 128, 18, nullptr, nullptr}}};

template <class Fits>
const GgufFormat* find(const Fits& fits) {
  const auto* const found = std::find_if(kFormats.begin(), kFormats.end(), fits);
  return found == kFormats.end() ? nullptr : found;
}

}  // namespace

std::span<const GgufFormat> gguf_formats() { return kFormats; }

const GgufFormat* find_gguf_format(std::uint32_t id) {
  return find([id](const GgufFormat& format) { return format.id == id; });
}

const GgufFormat* find_gguf_format(std::string_view word) {
  return find([word](const GgufFormat& format) { return format.word == word; });
}

std::string widened_gguf_formats() {
  std::string out;
  for (const GgufFormat& format : kFormats) {
    if (format.widen == nullptr) continue;
    out += (out.empty() ? "" : ", ") + std::string(format.word);
  }
  return out;
}

void widen_blocks(const GgufFormat& format, float* out, const std::uint8_t* blocks, std::int64_t count) {
  assert(format.widen != nullptr);
  for (std::int64_t b = 0; b < count; ++b) {
    format.widen(out + b * format.numbers, blocks + static_cast<std::size_t>(b) * format.bytes);
  }
}

}  // namespace headgate::io
