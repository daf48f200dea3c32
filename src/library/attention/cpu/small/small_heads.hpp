// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headgate {

/// Limits of small heads: the most features of a head, and the most queries or keys of a sequence. Narrow heads may
/// have more rows, because these fit the second-level cache.
inline constexpr std::int64_t kSmallHeadDim = 256, kSmallHeadRows = 256;
inline constexpr std::int64_t kNarrowHeadDim = 64, kNarrowHeadRows = 512;

}  // namespace headgate
