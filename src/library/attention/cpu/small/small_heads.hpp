// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headgate {

/// Limits for small heads: largest number of features, and largest number of queries or keys.
inline constexpr std::int64_t kSmallHeadDim = 256, kSmallHeadRows = 256;
/// Limit of queries and keys if there is a bias or mask and rows have at most kNarrowHead_bytes bytes
/// (docs/design/small-sequences.md).
inline constexpr std::int64_t kNarrowHead_bytes = 128, kNarrowHeadRows = 512;

}  // namespace headgate
