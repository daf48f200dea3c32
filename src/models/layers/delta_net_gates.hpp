// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/arguments.hpp"

// Computes the gates of the delta rule from their logits: the logarithm g of the decay, and β.

namespace headgate::layers {

/// Inputs of the gates g(N,H) = −exp(a_log)·softplus(a + dt_bias) and β(N,H) = beta_scale·σ(b). Shapes: a and b (N,H),
/// a_log and dt_bias (H).
template <typename T>
struct DeltaGates {
  View<const T, 2> a, b;
  View<const Wide<T>, 1> a_log, dt_bias;
  double beta_scale = 1.0;
};
template <typename T>
void delta_gates_forward(View<Wide<T>, 2> decay, View<Wide<T>, 2> beta, const DeltaGates<T>& gates,
                         const ExecutionContext& context);

/// Computes the gradients of the logits, da(N,H) and db(N,H). db may be dbeta. Multiplies ddecay(N,H), the gradient of
/// g, by g in place. The sum of da over the tokens is the gradient of dt_bias. The sum of the new ddecay over the
/// tokens is the gradient of a_log.
template <typename T>
void delta_gates_backward(View<T, 2> da, View<T, 2> db, View<Wide<T>, 2> ddecay, ConstView<Wide<T>, 2> dbeta,
                          ConstView<Wide<T>, 2> decay, const DeltaGates<T>& gates, const ExecutionContext& context);

}  // namespace headgate::layers
