// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "headgate/tensor.hpp"

// Scalar conversions between f32 and the 16-bit storage types. The conversions round to nearest even; NaN stays NaN.

namespace headgate {

inline float to_f32(BFloat16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

inline BFloat16 to_bf16(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (u + 0x7FFFU + ((u >> 16) & 1U)) >> 16;
  const std::uint32_t quiet_nan = (u >> 16) | 0x40U;
  const bool is_nan = (u & 0x7FFFFFFFU) > 0x7F800000U;
  return BFloat16{static_cast<std::uint16_t>(is_nan ? quiet_nan : rounded)};
}

inline float to_f32(Float16 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000U) << 16;
  const std::uint32_t magnitude = x.bits & 0x7FFFU;
  if (magnitude >= 0x7C00U) {  // infinity or NaN
    return std::bit_cast<float>(sign | 0x7F800000U | ((magnitude & 0x3FFU) << 13));
  }
  // Shifting the half's exponent and mantissa into place yields value · 2^(15-127). The product restores the scale and
  // normalises subnormals.
  const float scaled = std::bit_cast<float>(magnitude << 13) * std::bit_cast<float>(0x77800000U);  // 2^112
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

inline Float16 to_f16(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (u >> 16) & 0x8000U;
  const std::uint32_t magnitude = u & 0x7FFFFFFFU;
  std::uint32_t half = 0;
  if (magnitude > 0x7F800000U) {
    half = 0x7E00U;
  } else if (magnitude >= 0x47800000U) {  // 2^16 and above overflow to infinity
    half = 0x7C00U;
  } else if (magnitude >= 0x38800000U) {  // normal half: rebias 127 to 15, round off 13 bits; may carry to infinity
    half = (magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13;
  } else {  // subnormal half: adding ½ aligns 2^-24, the last bit of the half, with the last bit of the float
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
  }
  return Float16{static_cast<std::uint16_t>(sign | half)};
}

}  // namespace headgate
