// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "layers/view.hpp"

namespace headgate::layers {

/// Sizes and leading dimensions of y = x wᵀ. A leading dimension of 0 means contiguous rows.
struct LinearShape {
  std::int64_t N = 0;    ///< tokens
  std::int64_t C = 0;    ///< inputs
  std::int64_t O = 0;    ///< outputs
  std::int64_t ldx = 0;  ///< row stride of x and dx, ≥ C
  std::int64_t ldy = 0;  ///< row stride of y and dy, ≥ O
  std::int64_t ldw = 0;  ///< row stride of w and dw, ≥ C
};

/// y(N,O) = or += x(N,C) wᵀ, w(O,C).
template <typename T>
void linear_forward(T* y, const T* x, const T* w, const LinearShape& shape, Store store = Store::overwrite);

/// dx(N,C) = or += dy(N,O) w (null: skipped); dw(O,C) += dyᵀ x (null: skipped). dx may not overlap dy or x.
template <typename T>
void linear_backward(T* dx, T* dw, const T* dy, const T* x, const T* w, const LinearShape& shape,
                     Store store_dx = Store::overwrite);

}  // namespace headgate::layers
