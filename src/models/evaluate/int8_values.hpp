// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "headgate/cache.hpp"
#include "models/evaluate/int8_rounding.hpp"
#include "models/layers/head_views.hpp"

namespace headgate::metrics {

inline constexpr std::array<Figure, 4> kInt8ValuesFigures{{
    {.key = "int8_values_per_tensor",
     .decimals = 4,
     .meaning =
         "The error of int8 rounding in values, relative to their size, with one scale for a sequence and head."},
    {.key = "int8_values_per_tensor_without_first",
     .null_for_one_token = true,
     .decimals = 4,
     .meaning = "The error of int8 rounding in values with one scale for a sequence and head, which leaves out the "
                "first token."},
    {.key = "int8_values_per_token",
     .decimals = 4,
     .meaning = "The error of int8 rounding in values, relative to their size, with a scale for each token and head."},
    {.key = "int8_values_per_token_without_first",
     .null_for_one_token = true,
     .decimals = 4,
     .meaning = "The error of int8 rounding in values with a scale for each token and head, without the first token."},
}};

template <typename T>
Int8Rounding int8_rounding_of_values(const LayerSample<T>& sample) {
  return int8_rounding_of(sample, layers::by_head(sample.view.v, sample.view.shape.batch, sample.view.shape.seq),
                          &CacheTensors::v);
}

template <typename T>
using Int8ValuesSums = Int8RoundingSums<T, &int8_rounding_of_values<T>>;

inline constexpr Metric kInt8ValuesMetric{
    .name = "int8_values",
    .definition =
        "the errors of `int8_hidden`, of the values that attention reads (after the gate): with one scale for each "
        "sequence and key/value head, and with one for each token and head, as in an int8 KV cache",
    .figures = kInt8ValuesFigures,
    .layers = MetricLayers::attention,
    .inputs = {Input::cached},
    .sums = kSumsOf<Int8ValuesSums>,
    .by_default = false,
};

}  // namespace headgate::metrics
