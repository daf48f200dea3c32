// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Lengths at which the attention kernels cut their sums: the terms of a block are added one after the other in
// registers, then the blocks. They decide the bits of every result, and with them how far equal terms can round away,
// which the tests' oracle takes into account. Fixed, so that results do not depend on the caches of the machine: with
// them what a tile needs, its scores among it, stays in a second-level cache of 1 MiB (measured beside halves and
// doubles in docs/design/forward.md).

namespace headgate {

/// Queries of a tile, forward and backward: the blocks of dk, dv and dsinks.
inline constexpr std::int64_t kQueryTile = 96;
/// Keys of a block of the forward pass: the blocks of the softmax's sum and of y.
inline constexpr std::int64_t kForwardKeys = 384;
/// Keys of a block of the backward pass: the blocks of dq.
inline constexpr std::int64_t kBackwardKeys = 192;
/// Forward pass of few queries: keys of a split, the blocks of y; of int8, and of 16 bits where a sequence has many;
/// blocks of the softmax's sum within it.
inline constexpr std::int64_t kSplitKeys = 1024;
inline constexpr std::int64_t kLongSplitKeys = 2048;
inline constexpr std::int64_t kLongSplits = 8;  ///< that a sequence of 16 bits must have
inline constexpr std::int64_t kSplitSumKeys = 256;

}  // namespace headgate
