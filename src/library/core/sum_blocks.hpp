// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Block lengths of the sums in the attention kernels. A sum first adds the terms of each block in order, and then the
// sums of the blocks. The block lengths thus determine the rounding of every result, and the tests' error bounds depend
// on them. They are constants, so that results do not depend on the machine's cache sizes. The data of a tile,
// including its scores, fit in an L2 cache of 1 MiB. docs/design/forward.md has measurements with half and double
// lengths.

namespace headgate {

/// Number of queries in a tile of the forward and the backward pass. Also the block length of sums over queries: dk, dv
/// and dsinks.
inline constexpr std::int64_t kQueryTile = 96;
/// Number of keys in a block of the forward pass. Also the block length of sums over keys: y and the softmax
/// denominator.
inline constexpr std::int64_t kForwardKeys = 384;
/// Number of keys in a block of the backward pass. Also the block length of dq, which is a sum over keys.
inline constexpr std::int64_t kBackwardKeys = 192;
/// Number of keys in a split. A forward pass of few queries divides the keys into splits. It first sums y over the keys
/// of each split, and then over the splits.
inline constexpr std::int64_t kSplitKeys = 1024;
/// keys per split for int8 keys and for long sequences of 16-bit keys
inline constexpr std::int64_t kLongSplitKeys = 2048;
/// Least number of splits of kLongSplitKeys keys in a sequence with 16-bit keys. Shorter sequences use splits of
/// kSplitKeys keys.
inline constexpr std::int64_t kLongSplits = 8;
inline constexpr std::int64_t kSplitSumKeys = 256;  ///< block length of the softmax denominator within a split

}  // namespace headgate
