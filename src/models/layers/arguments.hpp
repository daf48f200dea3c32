// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "headgate/runtime.hpp"
#include "library/core/view.hpp"

// What the functions of all layers have in common. Each is instantiated for float and double and takes outputs, inputs,
// scalars and last the context, one of resolved(): the same number of threads gives the same bits. Views may have gaps
// between rows, but the elements of a row, the last dimension, lie side by side. Debug builds assert that shapes fit.

namespace headgate::layers {

/// Whether a result replaces what its buffer holds (=) or is added to it (+=).
enum class Update { overwrite, add };

/// Whether the elements of a row lie side by side.
template <typename T, std::size_t kRank>
constexpr bool has_whole_rows(const View<T, kRank>& view) {
  return view.shape[kRank - 1] <= 1 || view.strides[kRank - 1] == 1;
}

/// Rows (N,D) as tokens with one head, (N,1,D).
template <typename T>
constexpr View<T, 3> one_head(const View<T, 2>& rows) {
  return rows.split(1, 1, rows.shape[1]);
}

}  // namespace headgate::layers
