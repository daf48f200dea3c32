// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headgate {

/// The most queries, and keys, of a sequence whose heads are small, and the most features of a head.
inline constexpr std::int64_t kSmallHeadRows = 256;
inline constexpr std::int64_t kSmallHeadDim = 256;

}  // namespace headgate
