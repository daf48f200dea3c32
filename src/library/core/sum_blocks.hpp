// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Block lengths of the sums in the attention kernels. The terms of a block are added in order, then the blocks. The
// lengths determine the rounding of every result; the tests' oracle uses them for its error bounds. They are constants,
// so that results do not depend on the cache sizes of the machine. With these lengths the data of a tile, including its
// scores, fit in an L2 cache of 1 MiB. docs/design/forward.md has measurements with half and double lengths.

namespace headgate {

/// Number of queries per tile, forward and backward. Block length of the sums of dk, dv and dsinks.
inline constexpr std::int64_t kQueryTile = 96;
/// Number of keys per block in the forward pass. Block length of the softmax denominator and of y.
inline constexpr std::int64_t kForwardKeys = 384;
/// Number of keys per block in the backward pass. Block length of the sums of dq.
inline constexpr std::int64_t kBackwardKeys = 192;
/// Number of keys per split in the forward pass of few queries. Block length of y there.
inline constexpr std::int64_t kSplitKeys = 1024;
inline constexpr std::int64_t kLongSplitKeys = 2048;  ///< keys per split for int8 and for long 16-bit sequences
inline constexpr std::int64_t kLongSplits = 8;        ///< fewest long splits that a 16-bit sequence is cut into
inline constexpr std::int64_t kSplitSumKeys = 256;    ///< block length of the softmax denominator within a split

}  // namespace headgate
