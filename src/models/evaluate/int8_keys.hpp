// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "headgate/cache.hpp"
#include "models/evaluate/int8_rounding.hpp"

namespace headgate::metrics {

inline constexpr std::array<Figure, 4> kInt8KeysFigures{{
    {.key = "int8_keys_per_tensor",
     .decimals = 4,
     .meaning = "The error of int8 rounding in keys, relative to their size, with one scale for a sequence and head."},
    {.key = "int8_keys_per_tensor_without_first",
     .null_for_one_token = true,
     .decimals = 4,
     .meaning = "The error of int8 rounding in keys with one scale for a sequence and head, which leaves out the first "
                "token."},
    {.key = "int8_keys_per_token",
     .decimals = 4,
     .meaning = "The error of int8 rounding in keys, relative to their size, with a scale for each token and head."},
    {.key = "int8_keys_per_token_without_first",
     .null_for_one_token = true,
     .decimals = 4,
     .meaning = "The error of int8 rounding in keys with a scale for each token and head, without the first token."},
}};

template <typename T>
Int8Rounding int8_rounding_of_keys(const LayerSample<T>& sample) {
  return int8_rounding_of(sample, sample.view.k, &CacheTensors::k);
}

template <typename T>
using Int8KeysSums = Int8RoundingSums<T, &int8_rounding_of_keys<T>>;

inline constexpr Metric kInt8KeysMetric{
    .name = "int8_keys",
    .definition =
        "the errors of `int8_hidden`, of the keys that attention reads (after gate, norm and RoPE): with one scale for "
        "each sequence and key/value head, and with one for each token and head, as in an int8 KV cache",
    .figures = kInt8KeysFigures,
    .layers = MetricLayers::attention,
    .inputs = {Input::cached},
    .sums = kSumsOf<Int8KeysSums>,
    .by_default = false,
};

}  // namespace headgate::metrics
