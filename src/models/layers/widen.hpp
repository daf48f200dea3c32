// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "library/core/convert.hpp"

namespace headgate::layers {

/// Converts `count` numbers from bf16 to f32.
inline void widen(float* to, const BFloat16* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = to_f32(from[i]);
}

}  // namespace headgate::layers
