// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/tensor.hpp"
#include "models/layers/arguments.hpp"
#include "models/layers/stored_matrix.hpp"

namespace headgate::layers {

// Products of layers. They run on the threads of the context and throw std::bad_alloc as multiply() does (gemm.hpp).
// Because they take most of a model's time, each one first checks whether its context is cancelled, and throws
// Cancelled: a model's pass ends between two products.

/// y(N,O) = or += x(N,C) wᵀ, w(O,C). Products of at most kSkinnyRows rows read w in place (skinny_gemm.hpp).
template <typename T>
void linear_forward(View<T, 2> y, ConstView<T, 2> x, ConstView<T, 2> w, Update update, const ExecutionContext& context);
/// Computes the same with w in bf16, which is widened as it is read. Sums are in f32.
void linear_forward(View<float, 2> y, ConstView<float, 2> x, View<const BFloat16, 2> w, Update update,
                    const ExecutionContext& context);
/// Computes the same with x and w in bf16: of numbers whose products are exact in f32.
void linear_forward(View<float, 2> y, ConstView<BFloat16, 2> x, View<const BFloat16, 2> w, Update update,
                    const ExecutionContext& context);
/// Computes the same with w in the blocks of a GGUF file. Widens rows as they are read, so memory for the widened
/// matrix is never allocated.
void linear_forward(View<float, 2> y, ConstView<float, 2> x, const StoredMatrix& w, Update update,
                    const ExecutionContext& context);
/// Computes the same with x in bf16 and w rounded to bf16 as it is read. Y: f32 or bf16.
template <typename Y>
void linear_forward(View<Y, 2> y, ConstView<BFloat16, 2> x, View<const float, 2> w, Update update,
                    const ExecutionContext& context);
template <typename Y>
void linear_forward(View<Y, 2> y, ConstView<BFloat16, 2> x, const StoredMatrix& w, Update update,
                    const ExecutionContext& context);

/// dx(N,C) = or += dy(N,O) w. dx may not overlap dy.
template <typename T>
void linear_backward_input(View<T, 2> dx, ConstView<T, 2> dy, ConstView<T, 2> w, Update update,
                           const ExecutionContext& context);

void linear_backward_input(View<float, 2> dx, ConstView<BFloat16, 2> dy, View<const BFloat16, 2> w, Update update,
                           const ExecutionContext& context);

/// dw(O,C) += dyᵀ x. An absent dw is not computed.
template <typename T>
void linear_backward_weight(View<T, 2> dw, ConstView<T, 2> dy, ConstView<T, 2> x, const ExecutionContext& context);
void linear_backward_weight(View<float, 2> dw, ConstView<BFloat16, 2> dy, ConstView<BFloat16, 2> x,
                            const ExecutionContext& context);

}  // namespace headgate::layers
