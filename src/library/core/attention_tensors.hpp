// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "headgate/attention.hpp"
#include "headgate/headgate.h"
#include "library/core/tensor_rows.hpp"

// Tables of the tensors of attention, one row per tensor (tensor_rows.hpp).

namespace headgate {

template <class Struct, typename View, class CStruct, typename CTensor>
using AttentionTensor = OperationTensor<AttentionInputs, Struct, View, CStruct, CTensor>;

using AttentionInput =
    AttentionTensor<AttentionInputs, ConstTensorView, headgate_attention_inputs, headgate_const_tensor>;
using AttentionOutput = AttentionTensor<AttentionOutputs, TensorView, headgate_attention_outputs, headgate_tensor>;
using SavedTensor = AttentionTensor<AttentionSaved, ConstTensorView, headgate_attention_saved, headgate_const_tensor>;
using IncomingTensor =
    AttentionTensor<AttentionIncoming, ConstTensorView, headgate_attention_incoming, headgate_const_tensor>;
using AttentionGradient =
    AttentionTensor<AttentionGradients, TensorView, headgate_attention_gradients, headgate_tensor>;

/// The inputs of attention. In all tables of this file, rows have the order of the struct's members.
inline constexpr auto kAttentionInputs = [] {
  using I = AttentionInputs;
  using C = headgate_attention_inputs;
  using enum TensorKind;
  using enum Elements;
  return std::array{
      AttentionInput("q", &I::q, &C::q, heads, floats, "(B,Hq,T,D)", "queries", {"--q", "Q.npy"}, {.required = true}),
      AttentionInput("k", &I::k, &C::k, heads, of_q_or_i8, "(B,Hkv,S,D)",
                     "keys; Hq is a multiple of Hkv. With block_table pages (P,Hkv,page,D); int8 with k_scale",
                     {"--k", "K.npy"}, {.required = true, .in_pages = true}),
      AttentionInput("v", &I::v, &C::v, heads, of_q_or_i8, "(B,Hkv,S,Dv)", "values, of the dtype of k; in pages as k",
                     {"--v", "V.npy"}, {.required = true, .in_pages = true}),
      AttentionInput("gate", &I::gate, &C::gate, heads, of_q_or_f32, "(B,Hq,T,1|Dv)",
                     "raw gate logits z, of one feature headwise, of Dv elementwise; without it, y = o",
                     {"--gate", "Z.npy"}),
      AttentionInput("bias", &I::bias, &C::bias, scores, of_q_or_f32, "(B|1,Hq|1,T|1,S)",
                     "added to the scores; leading dimensions may be left out; -inf hides the key",
                     {.option = "--bias", .name = "B.npy", .or_f32 = true}),
      AttentionInput("mask", &I::mask, &C::mask, scores, boolean, "(B|1,Hq|1,T|1,S)",
                     "true = visible; leading dimensions may be left out", {"--mask", "M.npy"}),
      AttentionInput("key_lengths", &I::key_lengths, &C::key_lengths, vector, integers, "(B)",
                     "keys of sequence b from key_lengths[b] on are hidden and not read", {"--key-lengths", "N.npy"}),
      AttentionInput("alibi_slopes", &I::alibi_slopes, &C::alibi_slopes, head_numbers, f32_or_f64, "(Hq) or (B,Hq)",
                     "slope * |at_i - j| is taken off the scores; of a packed batch (N,Hq)", {"--alibi", "A.npy"}),
      AttentionInput("sinks", &I::sinks, &C::sinks, query_numbers, f32_or_f64, "(Hq) or (B|1,Hq,T)",
                     "logits that join the softmax denominator without a value, of each head or each query",
                     {"--sinks", "S.npy"}),
      AttentionInput("query_offsets", &I::query_offsets, &C::query_offsets, vector, integers, "(B)",
                     "query i of sequence b stands at key position at_i = query_offsets[b] + i; i + S - T without it",
                     {"--query-offsets", "A.npy"}, {.older_c_ends_here = true}),
      AttentionInput("cu_seqlens_q", &I::cu_seqlens_q, &C::cu_seqlens_q, vector, integers, "(N+1)",
                     "makes a packed batch of N sequences, with B = 1: the queries of sequence n are rows "
                     "cu_seqlens_q[n] to cu_seqlens_q[n+1] of those of q, 0 first and T last; key_lengths, "
                     "query_offsets and block_table have N rows. Needs cu_seqlens_k or block_table",
                     {"--cu-seqlens-q", "CQ.npy"}),
      AttentionInput("cu_seqlens_k", &I::cu_seqlens_k, &C::cu_seqlens_k, vector, integers, "(N+1)",
                     "the same of its keys, 0 first and S last; at_i = i + S_n - T_n. Not with block_table",
                     {"--cu-seqlens-k", "CK.npy"}, {.needs = &I::cu_seqlens_q}),
      AttentionInput("block_table", &I::block_table, &C::block_table, table, i32, "(B|N,M)",
                     "key j of sequence b is row j % page of page block_table[b,j/page] of k and v; S = M * page. The "
                     "last query of a packed sequence stands at its last key, unless query_offsets say otherwise",
                     {"--block-table", "E.npy"}, {.forward_only = true, .needs = &I::key_lengths}),
      AttentionInput("k_scale", &I::k_scale, &C::k_scale, heads, f32, "(B,Hkv,S,1)",
                     "scales of k in int8, or of pages (P,Hkv,page,1): key j is k_scale[j] * k[j]",
                     {"--k-scale", "KS.npy"}, {.in_pages = true, .forward_only = true, .needs = &I::v_scale}),
      AttentionInput("v_scale", &I::v_scale, &C::v_scale, heads, f32, "(B,Hkv,S,1)", "scales of v in int8, as k_scale",
                     {"--v-scale", "VS.npy"}, {.in_pages = true, .forward_only = true, .needs = &I::k_scale}),
      AttentionInput("key_bias", &I::key_bias, &C::key_bias, scores, floats, "(B|1,1,1,S)",
                     "a second bias, of keys: added to the scores of all heads and queries; -inf hides the key. It has "
                     "no gradient",
                     {"--key-bias", "KB.npy"}, {.older_c_ends_here = true}),
      AttentionInput("key_indices", &I::key_indices, &C::key_indices, scores, integers, "(B|1,Hkv|1,T,K)",
                     "lists of keys: query i sees key j only if its list has j; -1 is an empty entry; leading "
                     "dimensions may be left out",
                     {"--key-indices", "KI.npy"}, {.older_c_ends_here = true}),
      AttentionInput("k_first", &I::k_first, &C::k_first, heads, floats, "(B|N,Hkv,F,D)",
                     "the first F keys of each sequence, not rounded: read in place of rows j < F of k in int8. Of a "
                     "packed batch (N,Hkv,F,D)",
                     {"--k-first", "KF.npy"}, {.forward_only = true, .needs = &I::v_first, .older_c_ends_here = true}),
      AttentionInput("v_first", &I::v_first, &C::v_first, heads, floats, "(B|N,Hkv,F,Dv)",
                     "values of the first F keys, of the dtype of k_first", {"--v-first", "VF.npy"},
                     {.forward_only = true, .needs = &I::k_first}),
  };
}();
static_assert(AttentionInput::are_all_members(kAttentionInputs));

inline constexpr auto kAttentionOutputs = [] {
  using O = AttentionOutputs;
  using C = headgate_attention_outputs;
  using enum TensorKind;
  using enum Elements;
  return std::array{
      AttentionOutput("y", &O::y, &C::y, heads, of_q, "(B,Hq,T,Dv)", "the result", {"--out", "Y.npy"},
                      {.required = true}),
      AttentionOutput("lse", &O::lse, &C::lse, rows, f64_or_f32, "(B,Hq,T)",
                      "log-sum-exp of each row's scores, natural logarithm, sink included", {"--lse", "LSE.npy"}),
      AttentionOutput("attn", &O::attn, &C::attn, heads, of_q, "(B,Hq,T,Dv)", "o, the output before the gate"),
      AttentionOutput("weights", &O::weights, &C::weights, scores, of_q, "(B,Hq,T,S)", "softmax weights exp(s - lse)",
                      {"--weights", "P.npy"}),
      AttentionOutput("max_logit", &O::max_logit, &C::max_logit, rows_or_heads, f32_or_f64, "(B,Hq) or (B,Hq,T)",
                      "largest score of the visible keys, without the sink, for each head or for each row; of a packed "
                      "batch (N,Hq). -inf if no key is visible, and in rows that gate_threshold closes",
                      {"--max-logit", "M.npy"}, {.older_c_ends_here = true}),
  };
}();
static_assert(AttentionOutput::are_all_members(kAttentionOutputs));

inline constexpr auto kSavedTensors = [] {
  using S = AttentionSaved;
  using C = headgate_attention_saved;
  using enum TensorKind;
  using enum Elements;
  return std::array{
      SavedTensor("y", &S::y, &C::y, heads, of_q, "(B,Hq,T,Dv)", "of attention_forward, as lse and attn; needed", {},
                  {.required = true}),
      SavedTensor("lse", &S::lse, &C::lse, rows, f32_or_f64, "(B,Hq,T)", "needed", {}, {.required = true}),
      SavedTensor("attn", &S::attn, &C::attn, heads, of_q, "(B,Hq,T,Dv)",
                  "for dgate where g may be 0 (silu, identity); helps where it is added"),
  };
}();
static_assert(SavedTensor::are_all_members(kSavedTensors));

inline constexpr auto kIncomingTensors = [] {
  using G = AttentionIncoming;
  using C = headgate_attention_incoming;
  using enum TensorKind;
  using enum Elements;
  return std::array{
      IncomingTensor("dy", &G::dy, &C::dy, heads, of_q, "(B,Hq,T,Dv)", "gradient of y", {"--grad-out", "DY.npy"},
                     {.required = true}),
      IncomingTensor("dlse", &G::dlse, &C::dlse, rows, f32_or_f64, "(B,Hq,T)", "gradient of lse; zero without it"),
  };
}();
static_assert(IncomingTensor::are_all_members(kIncomingTensors));

inline constexpr auto kAttentionGradients = [] {
  using G = AttentionGradients;
  using C = headgate_attention_gradients;
  using I = AttentionInputs;
  constexpr const auto& kOf = kAttentionInputs;
  return std::array{
      gradient_row<AttentionGradient>(kOf, "dq", &G::dq, &C::dq, &I::q, "dq"),
      gradient_row<AttentionGradient>(kOf, "dk", &G::dk, &C::dk, &I::k, "dk"),
      gradient_row<AttentionGradient>(kOf, "dv", &G::dv, &C::dv, &I::v, "dv"),
      gradient_row<AttentionGradient>(kOf, "dgate", &G::dgate, &C::dgate, &I::gate, "dz"),
      gradient_row<AttentionGradient>(kOf, "dbias", &G::dbias, &C::dbias, &I::bias, "dbias"),
      gradient_row<AttentionGradient>(kOf, "dsinks", &G::dsinks, &C::dsinks, &I::sinks, "dsinks"),
  };
}();
static_assert(AttentionGradient::are_all_members(kAttentionGradients));

/// Returns the row of the input to which a gradient belongs: for dq, the row of q.
constexpr const AttentionInput& input_of_gradient(const AttentionGradient& gradient) {
  return kAttentionInputs[row_number(kAttentionInputs, gradient.gradient_of)];
}

/// Returns whether the attention sinks have one logit for each head, (1,1,1,Hq). Otherwise, they have one for each
/// query.
inline bool are_sinks_of_heads(const ConstTensorView& sinks) {
  return sinks.shape[0] == 1 && sinks.shape[1] == 1 && sinks.shape[2] == 1;
}

/// Returns the number of keys S. With a block table, S is M · page. If this product overflows, returns 0, and calls
/// then refuse the inputs.
inline std::int64_t keys_of(const AttentionInputs& in) {
  std::int64_t keys = in.k.shape[2];
  if (in.block_table.present() && __builtin_mul_overflow(keys, in.block_table.shape[3], &keys)) return 0;
  return keys;
}

/// Returns the number of sequences: N of a packed batch, otherwise B.
inline std::int64_t sequences_of(const AttentionInputs& in) {
  return in.cu_seqlens_q.present() ? in.cu_seqlens_q.shape[3] - 1 : in.q.shape[0];
}

/// Returns the size of the last dimension of an output of attention. The other dimensions are (B,Hq,T).
inline std::int64_t last_dim(TensorKind kind, std::int64_t S, std::int64_t Dv) {
  if (kind == TensorKind::rows || kind == TensorKind::rows_or_heads) return 1;
  return kind == TensorKind::scores ? S : Dv;
}

}  // namespace headgate
