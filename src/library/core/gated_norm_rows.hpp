// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <tuple>

#include "headgate/gated_norm.hpp"
#include "headgate/linear_attention.h"
#include "library/core/gate_functions.hpp"
#include "library/core/option_rows.hpp"
#include "library/core/tensor_rows.hpp"

// Tables of the tensors and options of the gated norm, one row each (tensor_rows.hpp, option_rows.hpp). The row of x
// also describes y and dy, which are arguments of functions and not members of a struct.

namespace headgate {

using NormInput = OperationTensor<GatedNormInputs, GatedNormInputs, ConstTensorView, headgate_gated_norm_inputs,
                                  headgate_const_tensor>;
using NormGradient =
    OperationTensor<GatedNormInputs, GatedNormGradients, TensorView, headgate_gated_norm_gradients, headgate_tensor>;

/// The inputs of the gated norm. In all tables of this file, rows have the order of the struct's members.
inline constexpr auto kNormInputs = [] {
  using I = GatedNormInputs;
  using C = headgate_gated_norm_inputs;
  using enum TensorKind;
  using enum Elements;
  return std::array{
      NormInput("x", &I::x, &C::x, heads, floats, "(B,H,T,D)", "rows of D features", {}, {.required = true}),
      NormInput("weight", &I::weight, &C::weight, head_features, of_x_or_f32, "(D) or (H,D)",
                "factors of the features, for all heads or for each; without it, 1"),
      NormInput("gate", &I::gate, &C::gate, heads, of_x_or_f32, "(B,H,T,D)",
                "raw gate logits z; without it, y has no factor g(z)"),
  };
}();
static_assert(NormInput::are_all_members(kNormInputs));

inline constexpr auto kNormGradients = [] {
  using G = GatedNormGradients;
  using C = headgate_gated_norm_gradients;
  using I = GatedNormInputs;
  constexpr const auto& kOf = kNormInputs;
  return std::array{
      gradient_row<NormGradient>(kOf, "dx", &G::dx, &C::dx, &I::x),
      gradient_row<NormGradient>(kOf, "dweight", &G::dweight, &C::dweight, &I::weight),
      gradient_row<NormGradient>(kOf, "dgate", &G::dgate, &C::dgate, &I::gate),
  };
}();
static_assert(NormGradient::are_all_members(kNormGradients));

/// Returns the row of the input to which a gradient belongs: for dx, the row of x.
constexpr const NormInput& input_of_gradient(const NormGradient& gradient) {
  return kNormInputs[row_number(kNormInputs, gradient.gradient_of)];
}

inline constexpr auto kNormOptions = [] {
  using O = GatedNormOptions;
  using C = headgate_gated_norm_options;
  return std::tuple_cat(
      std::tuple{
          option_row(OptionOf::norm, &O::eps, &C::eps,
                     {.name = "eps", .help = "added to the mean of squares; at least 0"},
                     {.given = &C::has_eps, .given_name = "has_eps"}),
          option_row(OptionOf::gate, &O::gate_fn, &C::gate_fn,
                     {.name = "gate_fn", .help = "the gate's function g, read only with a gate"}),
      },
      execution_rows<C>());
}();

}  // namespace headgate
