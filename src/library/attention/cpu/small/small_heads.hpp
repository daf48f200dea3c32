// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headgate {

/// Limits of small heads: the most queries or keys of a sequence, and the most features of a head.
inline constexpr std::int64_t kSmallHeadRows = 256;
inline constexpr std::int64_t kSmallHeadDim = 256;

}  // namespace headgate
