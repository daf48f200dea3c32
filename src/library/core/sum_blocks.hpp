// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Block lengths of the sums in the attention kernels. A sum adds the terms of each block in order, and then the blocks'
// sums. The block lengths thus determine the rounding of every result, and the tests' error bounds depend on them. The
// block lengths are constants, so that results do not depend on the machine's cache sizes. The data of a tile,
// including its scores, fit in an L2 cache of 1 MiB. docs/design/forward.md has measurements with half and double
// lengths.

namespace headgate {

/// Number of queries in a tile, forward and backward. Also the block length of the sums over queries: dk, dv and
/// dsinks.
inline constexpr std::int64_t kQueryTile = 96;
/// Number of keys in a block of the forward pass. Also the block length of the sums over keys: y and the softmax
/// denominator.
inline constexpr std::int64_t kForwardKeys = 384;
/// Number of keys in a block of the backward pass. Also the block length of dq, a sum over keys.
inline constexpr std::int64_t kBackwardKeys = 192;
/// Number of keys in a split. A forward pass of few queries divides the keys into splits. It first sums y over the keys
/// of each split, then over the splits.
inline constexpr std::int64_t kSplitKeys = 1024;
inline constexpr std::int64_t kLongSplitKeys = 2048;  ///< keys per split for int8 and for long 16-bit sequences
/// Splits of 16-bit keys have kLongSplitKeys keys if a sequence has at least kLongSplits such splits. Splits of shorter
/// sequences have kSplitKeys keys.
inline constexpr std::int64_t kLongSplits = 8;
inline constexpr std::int64_t kSplitSumKeys = 256;  ///< block length of the softmax denominator within a split

}  // namespace headgate
