// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "layers/view.hpp"

namespace headgate::layers {

/// Rotation angles: θ(t,i) = t · base^(−2i/R), t < T, i < R/2, R = rotary_dim (even).
/// cos(T,R/2) =, sin(T,R/2) =. Computed in f64.
template <typename T>
void rope_tables(T* cos, T* sin, std::int64_t seq_len, std::int64_t rotary_dim, double base);

/// Which features turn and where a token stands. Token n has position n mod seq_len.
struct RopeShape {
  std::int64_t seq_len = 0;     ///< T: rows of the tables
  std::int64_t rotary_dim = 0;  ///< R ≤ D, even: the first R features of a head turn, the rest stay. 0: none turns
};

/// In place on x(N,H,D), the "rotate half" pairing of features i and i + R/2:
/// (a, b) → (a·cos − b·sin, b·cos + a·sin).
template <typename T>
void rope_forward(HeadView<T> x, const T* cos, const T* sin, const HeadShape& shape, const RopeShape& rope);

/// In place on dx(N,H,D): the gradient turns back, by −θ.
template <typename T>
void rope_backward(HeadView<T> dx, const T* cos, const T* sin, const HeadShape& shape, const RopeShape& rope);

}  // namespace headgate::layers
