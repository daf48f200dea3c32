// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/tensor.hpp"
#include "library/core/element.hpp"

namespace headgate {

/// The tokens of sequence n: rows t0 … t0 + T of batch b.
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

}  // namespace headgate
