// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "headgate/runtime.hpp"
#include "library/core/view.hpp"
#include "library/core/words.hpp"

// Rounds the inputs of matrix products to int8 and back: x̂ = s · round(x / s). The scale is s = max|x| / 127, and
// round() rounds to nearest even. The products then multiply x̂ in their usual type, which simulates products of int8
// activations.

namespace headgate::layers {

/// Selects which numbers share a scale.
/// - token: the features of one token.
/// - tensor: all numbers of the tensor, that is, the features of all tokens of a sequence.
/// - tensor_keep_first: all numbers except those of the first token, which is not rounded.
enum class ActivationRounding : std::int32_t { none, token, tensor, tensor_keep_first };

/// Returns whether activations of different tokens are rounded with the same scale.
constexpr bool spans_tokens(ActivationRounding rounding) {
  return rounding == ActivationRounding::tensor || rounding == ActivationRounding::tensor_keep_first;
}

/// Returns x rounded to the nearest multiple of `scale`, or x if the scale is 0.
inline double rounded_to_int8(double x, double scale) { return scale == 0.0 ? x : scale * std::nearbyint(x / scale); }

/// Returns the scale of numbers whose largest magnitude is `largest`.
constexpr double int8_scale(double largest) { return largest / 127.0; }

/// Rounds x(N,C), the input of a product, in place. Its rows are the tokens of one sequence, in order.
/// `begins_sequence` says whether row 0 is the sequence's first token. If a number is infinite, all numbers that share
/// its scale become NaN.
template <typename T>
void round_activations(View<T, 2> x, ActivationRounding rounding, const ExecutionContext& context,
                       bool begins_sequence = true);

}  // namespace headgate::layers

namespace headgate {

template <>
struct Words<layers::ActivationRounding> {
  static constexpr std::array<Word<layers::ActivationRounding>, 3> kAll{
      {{layers::ActivationRounding::token, "i8-token"},
       {layers::ActivationRounding::tensor, "i8-tensor"},
       {layers::ActivationRounding::tensor_keep_first, "i8-tensor-keep-first"}}};
};

}  // namespace headgate
