// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/evaluate/mean_by_head.hpp"

namespace headgate::metrics {

inline constexpr Figure kStateRank{
    .key = "state_rank",
    .decimals = 2,
    .meaning =
        "How many directions the state of a value head holds after the last token: its participation ratio, "
        "from 1 to the head's features."};

template <typename T>
using StateRankSums = StateMeanSums<T, &RuleStatistics::effective_rank>;

inline constexpr Metric kStateRankMetric{
    .name = "state_rank",
    .definition =
        "of linear attention: (Σ σ²)² / Σ σ⁴ of the singular values σ of the state after the last token, mean over "
        "sequences and value heads",
    .figures = {&kStateRank, 1},
    .layers = MetricLayers::linear_attention,
    .inputs = {Input::state_ranks},
    .of_heads = true,
    .sums = kSumsOf<StateRankSums>,
    .by_default = false,
};

}  // namespace headgate::metrics
