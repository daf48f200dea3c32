// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/merge.hpp"
#include "library/core/element.hpp"

// Reads snapshot_lengths, (1,1,N|1,M), for the oracles of linear attention and of the short convolution.

namespace headgate::reference {

/// Returns M, the number of snapshots of each sequence.
inline std::int64_t snapshots_of(const ConstTensorView& lengths) { return lengths.present() ? lengths.shape[3] : 0; }

/// Returns the number of tokens of sequence n before its snapshot m.
inline std::int64_t snapshot_length(const ConstTensorView& lengths, std::int64_t n, std::int64_t m) {
  const std::int64_t row = lengths.shape[2] == 1 ? 0 : n;
  return load_index(narrow(lengths, 2, row, row + 1), m);
}

}  // namespace headgate::reference
