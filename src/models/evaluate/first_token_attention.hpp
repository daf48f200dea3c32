// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/evaluate/mean_by_head.hpp"
#include "models/evaluate/training_text.hpp"

namespace headgate::metrics {

inline constexpr Figure kFirstTokenAttention{.key = "first_token_attention",
                                             .null_for_one_token = true,
                                             .is_share = true,
                                             .decimals = 4,
                                             .demo_decimals = 4,
                                             .meaning =
                                                 "The share of attention that later tokens give to the first one, from "
                                                 "the softmax weights; far above the uniform value it is a sink."};

template <typename T>
using FirstTokenAttentionSums = QueryMeanSums<T, &LayerSample<T>::first_token_weights>;

inline constexpr Metric kFirstTokenAttentionMetric{
    .name = "first_token_attention",
    .definition = "softmax weight on token 0 of the sequence, mean over sequences, query heads and queries 1 … T−1",
    .figures = {&kFirstTokenAttention, 1},
    .layers = MetricLayers::first_token,
    .inputs = {Input::first_token_weights},
    .of_heads = true,
    .sums = kSumsOf<FirstTokenAttentionSums>,
    .training_text =
        [](const FigureRow& row) {
          return text_of_figure(row, kFirstTokenAttention, ", first-token attention {:.3f}");
        },
};

}  // namespace headgate::metrics
