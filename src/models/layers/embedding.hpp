// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/tensor.hpp"
#include "models/layers/arguments.hpp"
#include "models/layers/stored_matrix.hpp"

namespace headgate::layers {

/// Sets row n of y(N,C) to row tokens[n] of table(V,C). Each token is in [0, V).
template <typename T>
void embedding_forward(View<T, 2> y, ConstView<T, 2> table, ConstView<std::int32_t, 1> tokens,
                       const ExecutionContext& context);
void embedding_forward(View<float, 2> y, View<const BFloat16, 2> table, ConstView<std::int32_t, 1> tokens,
                       const ExecutionContext& context);
/// Sets row n of y(N,C) to row tokens[n] of a table that is stored in the blocks of a GGUF file.
void embedding_forward(View<float, 2> y, const StoredMatrix& table, ConstView<std::int32_t, 1> tokens,
                       const ExecutionContext& context);

/// Adds row n of dy(N,C) to row tokens[n] of dtable(V,C), in the order of n. Results are bitwise identical at any
/// number of threads.
template <typename T>
void embedding_backward(View<T, 2> dtable, ConstView<T, 2> dy, ConstView<std::int32_t, 1> tokens,
                        const ExecutionContext& context);

}  // namespace headgate::layers
