// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "layers/arguments.hpp"

namespace headgate::layers {

/// The angles of tokens at `positions`(T): θ(t,i) = positions[t] · base^(−2i/R), i < R/2, where the first R features of
/// a head turn, R even. cos(T,R/2) =, sin(T,R/2) =. Computed in f64.
template <typename T>
void rope_tables(View<T, 2> cos, View<T, 2> sin, const View<const std::int64_t, 1>& positions, double base);

/// In place on x(B,T,H,D), whose sequences have the same positions: token t of each turns by row t of the tables.
/// Features from R on stay. The "rotate half" pairing of features i and i + R/2:
/// (a, b) → (a·cos − b·sin, b·cos + a·sin).
template <typename T>
void rope_forward(View<T, 4> x, ConstView<T, 2> cos, ConstView<T, 2> sin, const ExecutionContext& context);

/// In place on dx(B,T,H,D): the gradient turns back, by −θ.
template <typename T>
void rope_backward(View<T, 4> dx, ConstView<T, 2> cos, ConstView<T, 2> sin, const ExecutionContext& context);

}  // namespace headgate::layers
