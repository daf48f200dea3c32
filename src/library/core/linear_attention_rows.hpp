// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <tuple>

#include "headgate/linear_attention.h"
#include "headgate/linear_attention.hpp"
#include "library/core/linear_words.hpp"
#include "library/core/option_rows.hpp"
#include "library/core/precision_words.hpp"
#include "library/core/tensor_rows.hpp"

// Tables of the tensors and options of linear attention, one row each (tensor_rows.hpp, option_rows.hpp).

namespace headgate {

template <class Struct, typename View, class CStruct, typename CTensor>
using LinearTensor = OperationTensor<LinearAttentionInputs, Struct, View, CStruct, CTensor>;

using LinearInput =
    LinearTensor<LinearAttentionInputs, ConstTensorView, headgate_linear_attention_inputs, headgate_const_tensor>;
using LinearOutput =
    LinearTensor<LinearAttentionOutputs, TensorView, headgate_linear_attention_outputs, headgate_tensor>;
using LinearIncomingTensor =
    LinearTensor<LinearAttentionIncoming, ConstTensorView, headgate_linear_attention_incoming, headgate_const_tensor>;
using LinearGradient =
    LinearTensor<LinearAttentionGradients, TensorView, headgate_linear_attention_gradients, headgate_tensor>;

/// The inputs of linear attention. In all tables of this file, rows have the order of the struct's members.
inline constexpr auto kLinearInputs = [] {
  using I = LinearAttentionInputs;
  using C = headgate_linear_attention_inputs;
  using enum TensorKind;
  using enum Elements;
  return std::array{
      LinearInput("q", &I::q, &C::q, heads, floats, "(B,Hq,T,D)", "queries", {"--q", "Q.npy"}, {.required = true}),
      LinearInput("k", &I::k, &C::k, heads, of_q, "(B,Hk,T,D)", "keys; Hv is a multiple of Hk", {"--k", "K.npy"},
                  {.required = true}),
      LinearInput("v", &I::v, &C::v, heads, of_q, "(B,Hv,T,Dv)",
                  "values, each head with a state; of Hq and Hv, one is a multiple of the other", {"--v", "V.npy"},
                  {.required = true}),
      LinearInput(
          "decay", &I::decay, &C::decay, heads, of_q_or_f32, "(B,Hv,T,1|D)",
          "g, a natural logarithm, for the whole state or for each of its D rows; without it, 0. With the rules "
          "gated and gated_delta alone",
          {.option = "--decay", .name = "G.npy", .or_f32 = true}),
      LinearInput("beta", &I::beta, &C::beta, heads, of_q_or_f32, "(B,Hv|1,T,1)",
                  "factor of the difference v - S^T k; without it, 1. With the rules delta and gated_delta alone",
                  {.option = "--beta", .name = "BETA.npy", .or_f32 = true}),
      LinearInput("state", &I::state, &C::state, state, f32_or_f64, "(N,Hv,D,Dv)",
                  "S_0, before the first token; without it, 0", {"--state", "S0.npy"}),
      LinearInput("cu_seqlens", &I::cu_seqlens, &C::cu_seqlens, vector, integers, "(N+1)",
                  "makes a packed batch of N sequences, with B = 1: tokens of sequence n are rows cu_seqlens[n] to "
                  "cu_seqlens[n+1], 0 first and T last. Without it, N = B",
                  {"--cu-seqlens", "C.npy"}),
      LinearInput("snapshot_lengths", &I::snapshot_lengths, &C::snapshot_lengths, table, integers, "(N|1,M)",
                  "numbers of tokens of each sequence after which its state is written to `snapshots`, in "
                  "non-decreasing order; one row is for all sequences",
                  {"--snapshot-lengths", "L.npy"}, {.forward_only = true, .older_c_ends_here = true}),
  };
}();
static_assert(LinearInput::are_all_members(kLinearInputs));

inline constexpr auto kLinearOutputs = [] {
  using O = LinearAttentionOutputs;
  using C = headgate_linear_attention_outputs;
  using enum TensorKind;
  using enum Elements;
  return std::array{
      LinearOutput("y", &O::y, &C::y, heads, of_q, "(B,Ho,T,Dv)", "the result; Ho is the larger of Hq and Hv",
                   {"--out", "Y.npy"}, {.required = true}),
      LinearOutput("state", &O::state, &C::state, TensorKind::state, f32_or_f64, "(N,Hv,D,Dv)",
                   "S_T, after the last token", {"--out-state", "S.npy"}),
      LinearOutput("snapshots", &O::snapshots, &C::snapshots, TensorKind::state, f32_or_f64, "(N*M,Hv,D,Dv)",
                   "states after the tokens that `snapshot_lengths` chooses: row n*M + m after entry [n,m]",
                   {"--out-snapshots", "SN.npy"},
                   {.needs = &LinearAttentionInputs::snapshot_lengths, .older_c_ends_here = true}),
  };
}();
static_assert(LinearOutput::are_all_members(kLinearOutputs));

inline constexpr auto kLinearIncoming = [] {
  using G = LinearAttentionIncoming;
  using C = headgate_linear_attention_incoming;
  using enum TensorKind;
  using enum Elements;
  return std::array{
      LinearIncomingTensor("dy", &G::dy, &C::dy, heads, of_q, "(B,Ho,T,Dv)", "gradient of y", {"--grad-out", "DY.npy"},
                           {.required = true}),
      LinearIncomingTensor("dstate", &G::dstate, &C::dstate, state, f32_or_f64, "(N,Hv,D,Dv)",
                           "gradient of S_T; zero without it", {"--grad-out-state", "DS.npy"}),
  };
}();
static_assert(LinearIncomingTensor::are_all_members(kLinearIncoming));

inline constexpr auto kLinearGradients = [] {
  using G = LinearAttentionGradients;
  using C = headgate_linear_attention_gradients;
  using I = LinearAttentionInputs;
  constexpr const auto& kOf = kLinearInputs;
  return std::array{
      gradient_row<LinearGradient>(kOf, "dq", &G::dq, &C::dq, &I::q, "dq"),
      gradient_row<LinearGradient>(kOf, "dk", &G::dk, &C::dk, &I::k, "dk"),
      gradient_row<LinearGradient>(kOf, "dv", &G::dv, &C::dv, &I::v, "dv"),
      gradient_row<LinearGradient>(kOf, "ddecay", &G::ddecay, &C::ddecay, &I::decay, "ddecay"),
      gradient_row<LinearGradient>(kOf, "dbeta", &G::dbeta, &C::dbeta, &I::beta, "dbeta"),
      gradient_row<LinearGradient>(kOf, "dstate", &G::dstate, &C::dstate, &I::state, "dstate"),
  };
}();
static_assert(LinearGradient::are_all_members(kLinearGradients));

/// Returns the row of the input to which a gradient belongs: for dq, the row of q.
constexpr const LinearInput& input_of_gradient(const LinearGradient& gradient) {
  return kLinearInputs[row_number(kLinearInputs, gradient.gradient_of)];
}

inline constexpr auto kLinearOptions = [] {
  using O = LinearAttentionOptions;
  using C = headgate_linear_attention_options;
  return std::tuple_cat(
      std::tuple{
          option_row(OptionOf::recurrence, &O::rule, &C::rule,
                     {"rule", "--rule", "RULE",
                      "how a token changes the state: gated ones decay it first, delta ones add only the difference "
                      "between v and what it returns for k"}),
          option_row(OptionOf::recurrence, &O::scale, &C::scale,
                     {"scale", "--scale", "X", "factor of S^T q", "1/sqrt(D)"},
                     {.given = &C::has_scale, .given_name = "has_scale"}),
          option_row(
              OptionOf::recurrence, &O::l2_norm, &C::l2_norm,
              {"l2_norm", "--l2-norm", "EPS",
               "eps of L2 norms, at least 0: q and k are first divided by sqrt(sum x^2 + eps) over D", "no norms"},
              {.given = &C::has_l2_norm, .given_name = "has_l2_norm"}),
          option_row(OptionOf::products, &O::precision, &C::precision,
                     {"precision", "--precision", "P",
                      "of products of bf16: exact, in float32; native16, in bf16 with float32 sums "
                      "where the CPU has instructions for it (`headgate info` names them), as exact where it has none"},
                     {.older_end_here = true}),
      },
      execution_rows<C>());
}();

}  // namespace headgate
