// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "headgate/runtime.hpp"
#include "library/core/convert.hpp"
#include "library/core/view.hpp"

// States what the functions of all layers have in common. Each is instantiated for float and double, and those that
// train in bf16 for BFloat16 too: activations are then stored in bf16, while sums, vectors of weights and their
// gradients, and the residual stream are in f32. Each takes
// outputs, inputs, scalars and, last, a context returned by resolved(). Results are bitwise identical at the same
// number of threads. Rows of a view may have gaps between them, but the elements of a row, the last dimension, are
// contiguous. Debug builds assert that shapes fit.

namespace headgate::layers {

/// The type in which numbers that are stored as T are computed and summed.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<std::remove_const_t<T>, BFloat16>, float, std::remove_const_t<T>>;

/// Returns a stored number as its Wide type.
inline float widened(BFloat16 x) { return to_f32(x); }
template <typename T>
T widened(T x) {
  return x;
}

/// Rounds a number to its storage type T.
template <typename T>
T rounded(Wide<T> x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bf16(x);
  } else {
    return x;
  }
}

/// Whether a result replaces what its buffer holds (=) or is added to it (+=).
enum class Update { overwrite, add };

/// Returns whether the elements of each row are contiguous.
template <typename T, std::size_t kRank>
constexpr bool has_whole_rows(const View<T, kRank>& view) {
  return view.shape[kRank - 1] <= 1 || view.strides[kRank - 1] == 1;
}

/// Views rows (N,D) as tokens with one head, (N,1,D).
template <typename T>
constexpr View<T, 3> one_head(const View<T, 2>& rows) {
  return rows.split(1, 1, rows.shape[1]);
}

}  // namespace headgate::layers
