// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <tuple>

#include "headgate/linear_attention.h"
#include "headgate/short_convolution.hpp"
#include "library/core/gate_functions.hpp"
#include "library/core/option_rows.hpp"
#include "library/core/tensor_rows.hpp"

// Tables of the tensors and options of the short convolution, one row each (tensor_rows.hpp, option_rows.hpp).

namespace headgate {

template <class Struct, typename View, class CStruct, typename CTensor>
using ConvolutionTensor = OperationTensor<ShortConvolutionInputs, Struct, View, CStruct, CTensor>;

using ConvolutionInput = ConvolutionTensor<ShortConvolutionInputs, ConstTensorView, headgate_short_convolution_inputs,
                                           headgate_const_tensor>;
using ConvolutionOutput =
    ConvolutionTensor<ShortConvolutionOutputs, TensorView, headgate_short_convolution_outputs, headgate_tensor>;
using ConvolutionIncomingTensor = ConvolutionTensor<ShortConvolutionIncoming, ConstTensorView,
                                                    headgate_short_convolution_incoming, headgate_const_tensor>;
using ConvolutionGradient =
    ConvolutionTensor<ShortConvolutionGradients, TensorView, headgate_short_convolution_gradients, headgate_tensor>;

/// The inputs of the short convolution. In all tables of this file, rows have the order of the struct's members.
inline constexpr auto kConvolutionInputs = [] {
  using I = ShortConvolutionInputs;
  using C = headgate_short_convolution_inputs;
  using enum TensorKind;
  using enum Elements;
  return std::array{
      ConvolutionInput("x", &I::x, &C::x, channels, floats, "(B,T,C)", "a row of channels for each token", {},
                       {.required = true}),
      ConvolutionInput("weight", &I::weight, &C::weight, table, of_x_or_f32, "(C,K)",
                       "K taps of each channel, from 2 to 8; the last meets the token itself", {}, {.required = true}),
      ConvolutionInput("bias", &I::bias, &C::bias, vector, of_x_or_f32, "(C)", "added to the sum; without it, 0"),
      ConvolutionInput("state", &I::state, &C::state, channel_state, of_x_or_f32, "(N,K-1,C)",
                       "the K-1 rows of x before the first token, oldest first; without it, 0"),
      ConvolutionInput(
          "cu_seqlens", &I::cu_seqlens, &C::cu_seqlens, vector, integers, "(N+1)",
          "makes a packed batch of N sequences, with B = 1: tokens of sequence n are rows cu_seqlens[n] to "
          "cu_seqlens[n+1], 0 first and T last. Without it, N = B"),
      ConvolutionInput("snapshot_lengths", &I::snapshot_lengths, &C::snapshot_lengths, table, integers, "(N|1,M)",
                       "numbers of tokens of each sequence after which its state is written to `snapshots`, in "
                       "non-decreasing order; one row is for all sequences",
                       {}, {.forward_only = true, .older_c_ends_here = true}),
  };
}();
static_assert(ConvolutionInput::are_all_members(kConvolutionInputs));

inline constexpr auto kConvolutionOutputs = [] {
  using O = ShortConvolutionOutputs;
  using C = headgate_short_convolution_outputs;
  using enum TensorKind;
  using enum Elements;
  return std::array{
      ConvolutionOutput("y", &O::y, &C::y, channels, of_x, "(B,T,C)", "the result", {}, {.required = true}),
      ConvolutionOutput("state", &O::state, &C::state, channel_state, of_x_or_f32, "(N,K-1,C)",
                        "the last K-1 rows of x, from the old state where T < K-1"),
      ConvolutionOutput("snapshots", &O::snapshots, &C::snapshots, channel_state, of_x_or_f32, "(N*M,K-1,C)",
                        "states after the tokens that `snapshot_lengths` chooses: row n*M + m after entry [n,m]", {},
                        {.needs = &ShortConvolutionInputs::snapshot_lengths, .older_c_ends_here = true}),
  };
}();
static_assert(ConvolutionOutput::are_all_members(kConvolutionOutputs));

inline constexpr auto kConvolutionIncoming = [] {
  using G = ShortConvolutionIncoming;
  using C = headgate_short_convolution_incoming;
  using enum TensorKind;
  using enum Elements;
  return std::array{
      ConvolutionIncomingTensor("dy", &G::dy, &C::dy, channels, of_x, "(B,T,C)", "gradient of y", {},
                                {.required = true}),
      ConvolutionIncomingTensor("dstate", &G::dstate, &C::dstate, channel_state, of_x_or_f32, "(N,K-1,C)",
                                "gradient of the new state; zero without it"),
  };
}();
static_assert(ConvolutionIncomingTensor::are_all_members(kConvolutionIncoming));

inline constexpr auto kConvolutionGradients = [] {
  using G = ShortConvolutionGradients;
  using C = headgate_short_convolution_gradients;
  using I = ShortConvolutionInputs;
  constexpr const auto& kOf = kConvolutionInputs;
  return std::array{
      gradient_row<ConvolutionGradient>(kOf, "dx", &G::dx, &C::dx, &I::x),
      gradient_row<ConvolutionGradient>(kOf, "dweight", &G::dweight, &C::dweight, &I::weight),
      gradient_row<ConvolutionGradient>(kOf, "dbias", &G::dbias, &C::dbias, &I::bias),
      gradient_row<ConvolutionGradient>(kOf, "dstate", &G::dstate, &C::dstate, &I::state),
  };
}();
static_assert(ConvolutionGradient::are_all_members(kConvolutionGradients));

/// Returns the row of the input to which a gradient belongs: for dx, the row of x.
constexpr const ConvolutionInput& input_of_gradient(const ConvolutionGradient& gradient) {
  return kConvolutionInputs[row_number(kConvolutionInputs, gradient.gradient_of)];
}

inline constexpr auto kConvolutionOptions = [] {
  using O = ShortConvolutionOptions;
  using C = headgate_short_convolution_options;
  return std::tuple_cat(
      std::tuple{option_row(
          OptionOf::convolution, &O::activation, &C::activation,
          {.name = "activation", .help = "activation of the sum; none: the sum itself", .words = "silu, none"})},
      execution_rows<C>());
}();

}  // namespace headgate
