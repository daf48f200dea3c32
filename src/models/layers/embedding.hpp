// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/tensor.hpp"
#include "models/layers/arguments.hpp"
#include "models/layers/stored_matrix.hpp"

namespace headgate::layers {

/// y(N,C) = rows of table(V,C) named by tokens(N), each in [0, V).
template <typename T>
void embedding_forward(View<T, 2> y, ConstView<T, 2> table, ConstView<std::int32_t, 1> tokens,
                       const ExecutionContext& context);
void embedding_forward(View<float, 2> y, View<const BFloat16, 2> table, ConstView<std::int32_t, 1> tokens,
                       const ExecutionContext& context);
/// Computes the same with a table in the blocks of a GGUF file.
void embedding_forward(View<float, 2> y, const StoredMatrix& table, ConstView<std::int32_t, 1> tokens,
                       const ExecutionContext& context);

/// dtable(V,C) += the rows of dy(N,C), in the order of tokens: bitwise identical at any number of threads.
template <typename T>
void embedding_backward(View<T, 2> dtable, ConstView<T, 2> dy, ConstView<std::int32_t, 1> tokens,
                        const ExecutionContext& context);

}  // namespace headgate::layers
