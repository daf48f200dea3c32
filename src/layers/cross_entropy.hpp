// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headgate::layers {

/// A target that takes no part in the loss: its row has loss 0 and gradient 0.
inline constexpr std::int32_t kIgnoredTarget = -1;

/// Returns the mean over the targets that count of −log softmax(logits)[target], in nats (0 if none counts).
/// losses(N) = each row's loss (null: not written).
/// dlogits(N,V) = gradient_scale · gradient of the mean (null: not written); may be logits itself.
/// logits(N,V) contiguous; targets(N), each in [0, V) or kIgnoredTarget.
template <typename T>
double cross_entropy(T* losses, T* dlogits, const T* logits, const std::int32_t* targets, std::int64_t N,
                     std::int64_t V, double gradient_scale = 1.0);

}  // namespace headgate::layers
