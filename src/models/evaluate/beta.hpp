// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/evaluate/mean_by_head.hpp"

namespace headgate::metrics {

inline constexpr Figure kMeanBeta{
    .key = "mean_beta",
    .decimals = 4,
    .meaning = "How much of what its key reads a token replaces in the state: 0 writes nothing, 1 replaces all of it."};

template <typename T>
using BetaSums = StateMeanSums<T, &RuleStatistics::mean_beta>;

inline constexpr Metric kBeta{
    .name = "beta",
    .definition = "of linear attention: mean of β over tokens and value heads",
    .figures = {&kMeanBeta, 1},
    .layers = MetricLayers::linear_attention,
    .inputs = {Input::rule_means},
    .of_heads = true,
    .sums = kSumsOf<BetaSums>,
};

}  // namespace headgate::metrics
