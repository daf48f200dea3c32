// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/tensor.hpp"
#include "library/core/element.hpp"

namespace headgate {

/// The tokens of sequence n, which are rows t0 … t0 + T of batch b.
struct TokenRange {
  std::int64_t n = 0, b = 0;
  std::int64_t t0 = 0, T = 0;
};

/// Returns sequence n of a packed batch with the bounds `cu_seqlens`, or batch n of T tokens if `cu_seqlens` is absent.
inline TokenRange sequence_of_batch(const ConstTensorView& cu_seqlens, std::int64_t n, std::int64_t T) {
  if (!cu_seqlens.present()) return {.n = n, .b = n, .t0 = 0, .T = T};
  const std::int64_t t0 = load_index(cu_seqlens, n);
  return {.n = n, .b = 0, .t0 = t0, .T = load_index(cu_seqlens, n + 1) - t0};
}

}  // namespace headgate
