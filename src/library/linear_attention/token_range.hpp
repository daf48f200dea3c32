// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/merge.hpp"
#include "headgate/tensor.hpp"
#include "library/core/element.hpp"

namespace headgate {

/// The tokens of sequence n: rows [t0, t0 + T) of batch b.
struct TokenRange {
  std::int64_t n = 0, b = 0;
  std::int64_t t0 = 0, T = 0;
};

/// Returns the tokens of sequence n of a packed batch with the bounds `cu_seqlens`. If `cu_seqlens` is absent, returns
/// the T tokens of batch n.
inline TokenRange sequence_of_batch(const ConstTensorView& cu_seqlens, std::int64_t n, std::int64_t T) {
  if (!cu_seqlens.present()) return {.n = n, .b = n, .t0 = 0, .T = T};
  const std::int64_t t0 = load_index(cu_seqlens, n);
  return {.n = n, .b = 0, .t0 = t0, .T = load_index(cu_seqlens, n + 1) - t0};
}

/// Returns M, the number of snapshots of each sequence. `lengths` has shape (1,1,N,M); if absent, returns 0.
inline std::int64_t snapshots_of(const ConstTensorView& lengths) { return lengths.present() ? lengths.shape[3] : 0; }

/// Returns the number of tokens of sequence n before its snapshot m.
inline std::int64_t snapshot_length(const ConstTensorView& lengths, std::int64_t n, std::int64_t m) {
  return load_index(narrow(lengths, 2, n, n + 1), m);
}

}  // namespace headgate
