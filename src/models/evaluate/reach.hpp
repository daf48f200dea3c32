// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/evaluate/mean_by_head.hpp"

namespace headgate::metrics {

inline constexpr Figure kReach{
    .key = "reach",
    .null_for_one_token = true,
    .decimals = 2,
    .meaning =
        "How many tokens back queries of linear attention look on average, by the magnitudes of the weights "
        "hidden in the state."};

template <typename T>
using ReachSums = RuleQueryMeanSums<T, &RuleStatistics::reaches>;

inline constexpr Metric kReachMetric{
    .name = "reach",
    .definition =
        "of linear attention: Σ_j abs(a_tj) (t − j) / Σ_j abs(a_tj) in tokens, of the same weights, mean over "
        "sequences, value heads and queries 1 … T−1",
    .figures = {&kReach, 1},
    .layers = MetricLayers::linear_attention,
    .inputs = {Input::hidden_weights},
    .of_heads = true,
    .sums = kSumsOf<ReachSums>,
    .by_default = false,
};

}  // namespace headgate::metrics
