// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "headgate/runtime.hpp"
#include "library/core/convert.hpp"
#include "library/core/view.hpp"

// Defines conventions for the functions of all layers:
// - Each function is instantiated for float and double, and for BFloat16 if it supports training in bf16.
// - In bf16, activations are stored in bf16. Sums, weight vectors, their gradients and the residual stream are f32.
// - The arguments come in this order: outputs, inputs, scalars, and a context returned by resolved().
// - Results are bitwise identical at the same number of threads.
// - The elements of a row, the last dimension of a view, are contiguous. There may be gaps between rows.
// - Debug builds assert that shapes match.

namespace headgate::layers {

/// The type in which numbers stored as T are computed and summed: f32 for bf16, otherwise T.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<std::remove_const_t<T>, BFloat16>, float, std::remove_const_t<T>>;

/// True if T is narrower than Wide<T>, so that results are rounded when they are stored.
template <typename T>
inline constexpr bool kNarrow = !std::is_same_v<std::remove_const_t<T>, Wide<T>>;

/// Converts a stored number to the type in which it is computed, Wide<T>.
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

/// Selects whether a result overwrites its buffer (=) or is added to the buffer (+=).
enum class Update { overwrite, add };

/// Returns whether the elements of each row are contiguous.
template <typename T, std::size_t kRank>
constexpr bool has_whole_rows(const View<T, kRank>& view) {
  return view.shape[kRank - 1] <= 1 || view.strides[kRank - 1] == 1;
}

/// Views rows (N,D) as (N,1,D), tokens with one head.
template <typename T>
constexpr View<T, 3> one_head(const View<T, 2>& rows) {
  return rows.split(1, 1, rows.shape[1]);
}

}  // namespace headgate::layers
