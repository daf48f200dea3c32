// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headgate {

/// Limits of small heads: largest number of features of a head, and of queries or keys of a sequence.
inline constexpr std::int64_t kSmallHeadDim = 256, kSmallHeadRows = 256;
/// With a bias or mask, the limit of queries and keys is larger for heads whose rows have at most kNarrowHead_bytes
/// (docs/design/small-sequences.md).
inline constexpr std::int64_t kNarrowHead_bytes = 128, kNarrowHeadRows = 512;

}  // namespace headgate
