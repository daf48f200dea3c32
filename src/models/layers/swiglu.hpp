// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/arguments.hpp"

namespace headgate::layers {

/// h(N,F) = silu(gate) ∘ up, where gate_up(N,2F) holds gate in its first F columns and up in its last.
template <typename T>
void swiglu_forward(View<T, 2> h, ConstView<T, 2> gate_up, const ExecutionContext& context);

/// Computes dgate_up(N,2F) from dh(N,F); it may be gate_up. Recomputes h(N,F), if present, as in the forward pass, so
/// that it need not be kept; h may be dh.
template <typename T>
void swiglu_backward(View<T, 2> dgate_up, View<T, 2> h, ConstView<T, 2> dh, ConstView<T, 2> gate_up,
                     const ExecutionContext& context);

}  // namespace headgate::layers
