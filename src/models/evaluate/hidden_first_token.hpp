// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/evaluate/mean_by_head.hpp"

namespace headgate::metrics {

inline constexpr Figure kHiddenFirstToken{
    .key = "hidden_first_token_share",
    .null_for_one_token = true,
    .is_share = true,
    .decimals = 4,
    .meaning =
        "The share of the first token among the weights hidden in the states of linear attention, by magnitude: "
        "what first-token attention is for a softmax."};

template <typename T>
using HiddenFirstTokenSums = RuleQueryMeanSums<T, &RuleStatistics::first_shares>;

inline constexpr Metric kHiddenFirstTokenMetric{
    .name = "hidden_first_token",
    .definition =
        "of linear attention: abs(a_t0) / Σ_j abs(a_tj) of the weights a with which query t reads the values of tokens "
        "j, "
        "mean over sequences, value heads and queries 1 … T−1",
    .figures = {&kHiddenFirstToken, 1},
    .layers = MetricLayers::linear_attention,
    .inputs = {Input::hidden_weights},
    .of_heads = true,
    .sums = kSumsOf<HiddenFirstTokenSums>,
    .by_default = false,
};

}  // namespace headgate::metrics
