// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "headgate/runtime.hpp"
#include "library/core/view.hpp"

// States what the functions of all layers have in common. Each is instantiated for float and double. Each takes
// outputs, inputs, scalars and, last, a context returned by resolved(). Results are bitwise identical at the same
// number of threads. Rows of a view may have gaps between them, but the elements of a row, the last dimension, are
// contiguous. Debug builds assert that shapes fit.

namespace headgate::layers {

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
