// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/layers/arguments.hpp"

namespace headgate::layers {

/// A target that takes no part in the loss: its row has loss 0 and gradient 0.
inline constexpr std::int32_t kIgnoredTarget = -1;

/// Returns the mean over the targets that count of −log softmax(logits)[target], in nats (0 if none counts).
/// losses(N) = each row's loss, where it is present.
/// dlogits(N,V) = gradient_scale · gradient of the mean, where it is present; may be logits.
/// logits(N,V); targets(N), each in [0, V) or kIgnoredTarget, side by side.
template <typename T>
double cross_entropy(View<T, 1> losses, View<T, 2> dlogits, ConstView<T, 2> logits, ConstView<std::int32_t, 1> targets,
                     double gradient_scale, const ExecutionContext& context);

}  // namespace headgate::layers
