// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "layers/view.hpp"

namespace headgate::layers {

/// y(n) = 0, written by the threads that will use it.
template <typename T>
void fill_zero(T* y, std::int64_t n);

/// y(n) = x(n).
template <typename T>
void copy_to(T* y, const T* x, std::int64_t n);

/// y(n) += x(n).
template <typename T>
void add_to(T* y, const T* x, std::int64_t n);

/// y(N,H,D) = silu(x); y may be x itself.
template <typename T>
void silu_forward(HeadView<T> y, ConstHeadView<T> x, const HeadShape& shape);

/// dx(N,H,D) = dy·silu′(x); dx may be dy or x itself.
template <typename T>
void silu_backward(HeadView<T> dx, ConstHeadView<T> dy, ConstHeadView<T> x, const HeadShape& shape);

}  // namespace headgate::layers
