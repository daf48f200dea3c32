// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "models/evaluate/int8_rounding.hpp"

namespace headgate::metrics {

inline constexpr std::array<Figure, 4> kInt8HiddenFigures{{
    {.key = "int8_hidden_per_tensor",
     .decimals = 4,
     .meaning = "The error of int8 rounding in the residual stream, relative to its size, with one scale for a whole "
                "sequence."},
    {.key = "int8_hidden_per_tensor_without_first",
     .null_for_one_token = true,
     .decimals = 4,
     .meaning = "The error of int8 rounding in the residual stream with one scale for a whole sequence, which leaves "
                "out the first token."},
    {.key = "int8_hidden_per_token",
     .decimals = 4,
     .meaning =
         "The error of int8 rounding in the residual stream, relative to its size, with a scale for each token."},
    {.key = "int8_hidden_per_token_without_first",
     .null_for_one_token = true,
     .decimals = 4,
     .meaning =
         "The error of int8 rounding in the residual stream with a scale for each token, without the first token."},
}};

template <typename T>
Int8Rounding int8_rounding_of_stream(const LayerSample<T>& sample) {
  const View<const T, 2>& x = sample.view.sequence_output;
  const std::int64_t tokens = sample.view.seq_len;
  Int8Rounding out;
  for (std::int64_t b = 0; b < sample.view.shape.batch; ++b) {
    out.join(int8_rounding(tokens, sample.context, [&](std::int64_t t) { return x[b * tokens + t]; }));
  }
  return out;
}

template <typename T>
using Int8HiddenSums = Int8RoundingSums<T, &int8_rounding_of_stream<T>>;

inline constexpr Metric kInt8HiddenMetric{
    .name = "int8_hidden",
    .definition =
        "‖x − x̂‖ / ‖x‖ of the residual stream x after the layer and its int8 rounding x̂ = s · round(x / s), s = max "
        "abs(x) / 127: with one scale s for each sequence, and with one for each token. Squares are summed over "
        "sequences before the division. Each also without token 0 of a sequence, in scale and error",
    .figures = kInt8HiddenFigures,
    .inputs = {Input::output},
    .sums = kSumsOf<Int8HiddenSums>,
    .by_default = false,
};

}  // namespace headgate::metrics
