// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/evaluate/mean_by_head.hpp"

namespace headgate::metrics {

inline constexpr Figure kAttentionEntropy{
    .key = "attention_entropy",
    .null_for_one_token = true,
    .decimals = 3,
    .meaning = "How widely a query spreads its attention, in nats: 0 for one key, log n for n equal keys."};

template <typename T>
using AttentionEntropySums = QueryMeanSums<T, &LayerSample<T>::entropies>;

inline constexpr Metric kAttentionEntropyMetric{
    .name = "attention_entropy",
    .definition =
        "−Σ w log w of a query's softmax weights w, a sink's among them, in nats; mean over sequences, query heads and "
        "queries 1 … T−1",
    .figures = {&kAttentionEntropy, 1},
    .layers = MetricLayers::attention,
    .inputs = {Input::entropies},
    .of_heads = true,
    .sums = kSumsOf<AttentionEntropySums>,
    .by_default = false,
};

}  // namespace headgate::metrics
