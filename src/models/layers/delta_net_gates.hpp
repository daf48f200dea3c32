// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/arguments.hpp"

// Computes the two gates of the delta rule from their logits: the decay, in log space, and β.

namespace headgate::layers {

/// g(N,H) = −exp(a_log)·softplus(a + dt_bias), β(N,H) = beta_scale·σ(b). a and b are (N,H), a_log and dt_bias (H).
template <typename T>
struct DeltaGates {
  View<const T, 2> a, b;
  View<const Wide<T>, 1> a_log, dt_bias;
  double beta_scale = 1.0;
};
template <typename T>
void delta_gates_forward(View<Wide<T>, 2> decay, View<Wide<T>, 2> beta, const DeltaGates<T>& gates,
                         const ExecutionContext& context);

/// da(N,H) and db(N,H) = the gradients of a and b. ddecay(N,H), the gradient of g, becomes that of a_log in each token,
/// ddecay·g. The gradient of dt_bias in each token is da. db may be dbeta.
template <typename T>
void delta_gates_backward(View<T, 2> da, View<T, 2> db, View<Wide<T>, 2> ddecay, ConstView<Wide<T>, 2> dbeta,
                          ConstView<Wide<T>, 2> decay, const DeltaGates<T>& gates, const ExecutionContext& context);

}  // namespace headgate::layers
