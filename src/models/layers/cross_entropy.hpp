// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/layers/arguments.hpp"

namespace headgate::layers {

/// Target value of a row to ignore, with loss 0 and gradient 0.
inline constexpr std::int32_t kIgnoredTarget = -1;

/// Returns the mean of −log softmax(logits)[target], in nats, over all targets that are not ignored. Returns 0 if all
/// targets are ignored. Shapes: logits(N,V), and contiguous targets(N), each in [0, V) or kIgnoredTarget.
/// - losses(N), if present, receives the loss of each row.
/// - dlogits(N,V), if present, receives the gradient of the mean times gradient_scale. dlogits may be logits.
template <typename T>
double cross_entropy(View<T, 1> losses, View<T, 2> dlogits, ConstView<T, 2> logits, ConstView<std::int32_t, 1> targets,
                     double gradient_scale, const ExecutionContext& context);

}  // namespace headgate::layers
