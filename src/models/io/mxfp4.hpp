// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "models/io/gguf_formats.hpp"

// Defines the format MXFP4. A block has 32 numbers of 4 bits (E2M1), stored in 16 bytes. They share a scale of 8 bits
// (E8M0), a power of two. Two file formats order them differently:
// - GGUF, tensor type 39: the scale precedes the 16 bytes. Byte i holds number i (low nibble) and number 16 + i (high
//   nibble).
// - Hugging Face: the scales are in another tensor. Byte i holds number 2i (low nibble) and number 2i + 1 (high
//   nibble).

namespace headgate::io {

inline constexpr std::int64_t kMxfp4Numbers = 32;    ///< numbers per block
inline constexpr std::int64_t kMxfp4CodeBytes = 16;  ///< bytes per block, not counting the scale

/// Id of MXFP4 with scales in a separate tensor. This library uses the id only in memory, not in files.
inline constexpr std::uint32_t kMxfp4ApartId = std::numeric_limits<std::uint32_t>::max();

/// Doubled value of each 4-bit code. Doubling makes all values integers.
inline constexpr std::int8_t kMxfp4Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// Returns the bits of the f32 number 2^(scale − 128). This is half of the scale, which cancels the factor 2 of the
/// doubled values. The results 2^-127 and 2^-128 are subnormal.
constexpr std::uint32_t mxfp4_half_scale_bits(std::uint8_t scale) {
  return scale < 2 ? std::uint32_t{0x0020'0000} << scale : (std::uint32_t{scale} - 1) << 23;
}

/// Converts one block in the layout of GGUF to out(32).
void widen_mxfp4(float* out, const std::uint8_t* block);
/// Converts 16 bytes of codes in the layout of Hugging Face to out(32).
void widen_mxfp4_apart(float* out, const std::uint8_t* codes, std::uint8_t scale);

/// Return the index of the first block with a value that overflows f32. Return `count`, the number of blocks, if there
/// is none.
std::int64_t find_infinite_mxfp4(const std::uint8_t* blocks, std::int64_t count);
std::int64_t find_infinite_mxfp4_apart(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t count);

/// Returns the format of MXFP4 with scales in a separate tensor. The format is not in gguf_formats(), because its
/// blocks cannot be converted on their own.
const GgufFormat& mxfp4_apart();

}  // namespace headgate::io
