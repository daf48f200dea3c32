// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/tensor.hpp"
#include "models/layers/arguments.hpp"
#include "models/layers/stored_matrix.hpp"

namespace headgate::layers {

// Computes matrix products of layers on the threads of the context. Each product first checks for cancellation and
// throws Cancelled, so that a model's pass can end between two products. Products throw std::bad_alloc under the
// conditions of multiply() (gemm.hpp).

/// Computes y(N,O) = x(N,C) wᵀ or y += x wᵀ with w(O,C). `update` selects = or +=. If N ≤ kSkinnyRows, reads w in
/// place, without packing (skinny_gemm.hpp).
template <typename T>
void linear_forward(View<T, 2> y, ConstView<T, 2> x, ConstView<T, 2> w, Update update, const ExecutionContext& context);
/// Computes y = x wᵀ or y += x wᵀ, with w in bf16. Widens w to f32 as it is read. Sums are f32.
void linear_forward(View<float, 2> y, ConstView<float, 2> x, View<const BFloat16, 2> w, Update update,
                    const ExecutionContext& context);
/// Computes y = x wᵀ or y += x wᵀ, with x and w in bf16. Products of bf16 numbers are exact in f32.
void linear_forward(View<float, 2> y, ConstView<BFloat16, 2> x, View<const BFloat16, 2> w, Update update,
                    const ExecutionContext& context);
/// Computes y = x wᵀ or y += x wᵀ, with w in the blocks of a GGUF file. Widens rows as they are read, so memory for the
/// widened matrix is never allocated.
void linear_forward(View<float, 2> y, ConstView<float, 2> x, const StoredMatrix& w, Update update,
                    const ExecutionContext& context);
/// Computes y = x wᵀ or y += x wᵀ, with x in bf16. Rounds w to bf16 as it is read. The elements of y, of type Y, are
/// f32 or bf16.
template <typename Y>
void linear_forward(View<Y, 2> y, ConstView<BFloat16, 2> x, View<const float, 2> w, Update update,
                    const ExecutionContext& context);
template <typename Y>
void linear_forward(View<Y, 2> y, ConstView<BFloat16, 2> x, const StoredMatrix& w, Update update,
                    const ExecutionContext& context);

/// Computes dx(N,C) = dy(N,O) w or dx += dy w with w(O,C). `update` selects = or +=. dx and dy must not overlap.
template <typename T>
void linear_backward_input(View<T, 2> dx, ConstView<T, 2> dy, ConstView<T, 2> w, Update update,
                           const ExecutionContext& context);

void linear_backward_input(View<float, 2> dx, ConstView<BFloat16, 2> dy, View<const BFloat16, 2> w, Update update,
                           const ExecutionContext& context);

/// Adds the gradient of the weights: dw(O,C) += dyᵀ x with dy(N,O) and x(N,C). Does nothing if dw is absent.
template <typename T>
void linear_backward_weight(View<T, 2> dw, ConstView<T, 2> dy, ConstView<T, 2> x, const ExecutionContext& context);
void linear_backward_weight(View<float, 2> dw, ConstView<BFloat16, 2> dy, ConstView<BFloat16, 2> x,
                            const ExecutionContext& context);

}  // namespace headgate::layers
