// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "library/core/words.hpp"
#include "models/layers/arguments.hpp"

namespace headgate::layers {

/// Activations of a gated MLP. silu(x) = x·σ(x). gelu_tanh(x) = x·σ(z) with z = √(8/π)·(x + 0.044715·x³), which equals
/// GELU's tanh approximation.
enum class Activation : std::int32_t { silu, gelu_tanh };

/// Computes h(N,F) = act(gate) ∘ up, where gate_up(N,2F) holds gate in its first F columns and up in its last F
/// columns.
template <typename T>
void swiglu_forward(View<T, 2> h, ConstView<T, 2> gate_up, Activation activation, const ExecutionContext& context);

/// Computes h(N,F) = min(silu(gate), limit) ∘ clamp(up, −limit, limit), for limit > 0. NaN propagates.
template <typename T>
void swiglu_clamped_forward(View<T, 2> h, ConstView<T, 2> gate_up, double limit, const ExecutionContext& context);

/// Factor of the sigmoid's argument in swiglu_shifted_forward().
inline constexpr double kShiftedGain = 1.702;
/// Computes h(N,F) = g · σ(kShiftedGain · g) ∘ (u + 1) with g = min(gate, limit) and u = clamp(up, −limit, limit).
/// gate_up(N,2F) holds gate and up as in swiglu_forward(). A limit of 0 means no limit. NaN propagates.
template <typename T>
void swiglu_shifted_forward(View<T, 2> h, ConstView<T, 2> gate_up, double limit, const ExecutionContext& context);

/// Computes dgate_up(N,2F), the gradient of gate_up, from dh(N,F). dgate_up may be gate_up. If h(N,F) is present, also
/// recomputes the forward result h, so that the forward pass need not save it. h may be dh.
template <typename T>
void swiglu_backward(View<T, 2> dgate_up, View<T, 2> h, ConstView<T, 2> dh, ConstView<T, 2> gate_up,
                     Activation activation, const ExecutionContext& context);

}  // namespace headgate::layers

namespace headgate {

template <>
struct Words<layers::Activation> {
  static constexpr std::array<Word<layers::Activation>, 2> kAll{
      {{layers::Activation::silu, "silu"}, {layers::Activation::gelu_tanh, "gelu_tanh"}}};
};

}  // namespace headgate
