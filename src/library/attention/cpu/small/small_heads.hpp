// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headgate {

/// Limits of small heads: the most features of a head, and the most queries or keys of a sequence.
inline constexpr std::int64_t kSmallHeadDim = 256, kSmallHeadRows = 256;
/// With a bias or mask, heads whose rows have at most kNarrowHead_bytes may have more queries and keys
/// (docs/design/small-sequences.md).
inline constexpr std::int64_t kNarrowHead_bytes = 128, kNarrowHeadRows = 512;

}  // namespace headgate
