// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headgate {

/// Limits for small heads: largest number of features, and largest number of queries or keys.
inline constexpr std::int64_t kSmallHeadDim = 256, kSmallHeadRows = 256;
/// Limit of queries and keys for calls with a bias or mask and narrow heads (docs/design/small-sequences.md).
/// Rows of narrow heads have at most kNarrowHead_bytes bytes.
inline constexpr std::int64_t kNarrowHead_bytes = 128, kNarrowHeadRows = 512;

}  // namespace headgate
