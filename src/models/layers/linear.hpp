// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/tensor.hpp"
#include "models/layers/arguments.hpp"

namespace headgate::layers {

// Products run on the threads of the context, each of which calls OpenBLAS for its share. They throw Error where Blas
// does (blas.hpp). They take most of a model's time, so each first asks whether its context is cancelled, and throws
// Cancelled: passes of a model end between two products.

/// y(N,O) = or += x(N,C) wᵀ, w(O,C). Few rows of x read w in place (few_rows.hpp).
template <typename T>
void linear_forward(View<T, 2> y, ConstView<T, 2> x, ConstView<T, 2> w, Update update, const ExecutionContext& context);
/// The same with w in bf16, widened as it is read: sums are made in f32.
void linear_forward(View<float, 2> y, ConstView<float, 2> x, View<const BFloat16, 2> w, Update update,
                    const ExecutionContext& context);

/// dx(N,C) = or += dy(N,O) w. dx may not overlap dy.
template <typename T>
void linear_backward_input(View<T, 2> dx, ConstView<T, 2> dy, ConstView<T, 2> w, Update update,
                           const ExecutionContext& context);

/// dw(O,C) += dyᵀ x.
template <typename T>
void linear_backward_weight(View<T, 2> dw, ConstView<T, 2> dy, ConstView<T, 2> x, const ExecutionContext& context);

}  // namespace headgate::layers
