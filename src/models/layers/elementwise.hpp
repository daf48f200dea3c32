// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/arguments.hpp"

namespace headgate::layers {

/// Computes y(n) = x(n), both dense. Rounds if Y is bf16 and X is f32.
template <typename Y, typename X = Y>
void copy_to(View<Y, 1> y, ConstView<X, 1> x, const ExecutionContext& context);

/// Computes y(n) += x(n), both dense.
template <typename T>
void add_to(View<T, 1> y, ConstView<T, 1> x, const ExecutionContext& context);

/// Computes x = factor · x.
template <typename T>
void scale(View<T, 1> x, T factor, const ExecutionContext& context);

/// Computes y(N,H,D) = silu(x); y may be x.
template <typename T>
void silu_forward(View<T, 3> y, ConstView<T, 3> x, const ExecutionContext& context);

/// Computes dx(N,H,D) = dy·silu′(x); dx may be dy or x.
template <typename T>
void silu_backward(View<T, 3> dx, ConstView<T, 3> dy, ConstView<T, 3> x, const ExecutionContext& context);

}  // namespace headgate::layers
