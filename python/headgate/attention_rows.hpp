// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "headgate/attention.hpp"
#include "python/headgate/arrays.hpp"
#include "python/headgate/keywords.hpp"

// Inputs, outputs, gradients and options of attention as rows, which arguments, signatures and results walk.

namespace headgate::python {

template <class Struct, typename View>
struct TensorRow {
  const char* name;
  View Struct::*member;
  ArrayKind kind;
  const char* help = "";
};

using InputRow = TensorRow<AttentionInputs, ConstTensorView>;
using OutputRow = TensorRow<AttentionOutputs, TensorView>;
using GradientRow = TensorRow<AttentionGradients, TensorView>;

/// q, k, v and gate may be given by position.
inline constexpr std::size_t kPositionalInputs = 4;
/// q, k and v must be given.
inline constexpr std::size_t kRequiredInputs = 3;

inline constexpr std::array<InputRow, 15> kInputRows{{
    {"q", &AttentionInputs::q, ArrayKind::heads, "queries (B,Hq,T,D) of float32, float64, bfloat16 or float16"},
    {"k", &AttentionInputs::k, ArrayKind::heads,
     "keys (B,Hkv,S,D), dtype of q, or int8 with k_scale; with block_table pages (P,Hkv,page,D)"},
    {"v", &AttentionInputs::v, ArrayKind::heads, "values (B,Hkv,S,Dv), dtype of k; pages as k"},
    {"gate", &AttentionInputs::gate, ArrayKind::heads,
     "raw gate logits z, (B,Hq,T,1) headwise or (B,Hq,T,Dv) elementwise; dtype of q, or float32"},
    {"bias", &AttentionInputs::bias, ArrayKind::scores,
     "added to the scores, (B|1,Hq|1,T|1,S); -inf hides the key; dtype of q, or float32"},
    {"mask", &AttentionInputs::mask, ArrayKind::scores, "(B|1,Hq|1,T|1,S), bool, True = visible"},
    {"key_lengths", &AttentionInputs::key_lengths, ArrayKind::vector,
     "(B), int32 or int64: keys from there on are hidden and not read"},
    {"alibi_slopes", &AttentionInputs::alibi_slopes, ArrayKind::vector,
     "(Hq), float32 or float64: slope * |at_i - j| is taken off the scores"},
    {"sinks", &AttentionInputs::sinks, ArrayKind::vector,
     "(Hq), float32 or float64: a logit that joins the denominator without a value"},
    {"query_offsets", &AttentionInputs::query_offsets, ArrayKind::vector,
     "(B), int32 or int64: at_0, the key position of the first query; S - T by default"},
    {"cu_seqlens_q", &AttentionInputs::cu_seqlens_q, ArrayKind::vector,
     "(N+1), int32 or int64, of a packed batch: its sequences' first rows of q, then T"},
    {"cu_seqlens_k", &AttentionInputs::cu_seqlens_k, ArrayKind::vector, "the same of k, then S; not with block_table"},
    {"block_table", &AttentionInputs::block_table, ArrayKind::table,
     "(B,M), or (N,M) of a packed batch, int32: the pages of each sequence; needs key_lengths"},
    {"k_scale", &AttentionInputs::k_scale, ArrayKind::heads,
     "(B,Hkv,S,1), or of pages, float32: the scales of int8 keys"},
    {"v_scale", &AttentionInputs::v_scale, ArrayKind::heads, "as k_scale, of values"},
}};

inline constexpr std::array<OutputRow, 4> kOutputRows{{
    {"y", &AttentionOutputs::y, ArrayKind::heads, "(B,Hq,T,Dv), dtype of q"},
    {"lse", &AttentionOutputs::lse, ArrayKind::rows,
     "(B,Hq,T), float64 for float64, else float32: log-sum-exp of the scores, sink included"},
    {"attn", &AttentionOutputs::attn, ArrayKind::heads, "o (B,Hq,T,Dv), dtype of q: the output before the gate"},
    {"weights", &AttentionOutputs::weights, ArrayKind::scores, "exp(s - lse) (B,Hq,T,S), dtype of q"},
}};

/// A gradient and the input that it is of.
struct GradientOf {
  GradientRow row;
  ConstTensorView AttentionInputs::*input;
};

inline constexpr std::array<GradientOf, 6> kGradientRows{{
    {{"dq", &AttentionGradients::dq, ArrayKind::heads, "shape and dtype of q"}, &AttentionInputs::q},
    {{"dk", &AttentionGradients::dk, ArrayKind::heads, "shape and dtype of k"}, &AttentionInputs::k},
    {{"dv", &AttentionGradients::dv, ArrayKind::heads, "shape and dtype of v"}, &AttentionInputs::v},
    {{"dgate", &AttentionGradients::dgate, ArrayKind::heads, "shape and dtype of gate"}, &AttentionInputs::gate},
    {{"dbias", &AttentionGradients::dbias, ArrayKind::scores, "shape and dtype of bias"}, &AttentionInputs::bias},
    {{"dsinks", &AttentionGradients::dsinks, ArrayKind::vector, "shape and dtype of sinks"}, &AttentionInputs::sinks},
}};

/// The inputs of a call and what they need to be kept for.
struct Inputs {
  AttentionInputs views;
  std::array<Input, kInputRows.size()> arrays;
  nb::object q;  ///< outputs are made by the program that it comes from
  Layout layout = Layout::bhtd;

  /// Whether q has a dimension for the batch: outputs then have one.
  bool has_batch() const { return arrays[0].array.ndim() == 4; }
};

/// Takes `layout` and all inputs. An absent one is None, which the first `required` must not be.
Inputs take_inputs(const Keywords& keywords, std::size_t required = kRequiredInputs);

/// Takes `layout` alone.
Layout take_layout(const Keywords& keywords);

/// S; 0 where it would overflow, which the call refuses.
std::int64_t keys_of(const AttentionInputs& in);

/// Takes every option.
AttentionOptions take_options(const Keywords& keywords);

/// What signatures say of the inputs, of which the first `required` must be given, of `layout`, and of the options.
std::vector<ArgumentText> input_texts(std::size_t required = kRequiredInputs);
ArgumentText layout_text();
std::vector<ArgumentText> option_texts();

}  // namespace headgate::python

/// Words of the enumerators that headgate/attention.hpp has and no room below has words for.
template <>
struct headgate::Words<headgate::Causality> {
  static constexpr std::array<Word<Causality>, 2> kAll{{{Causality::none, "none"}, {Causality::causal, "causal"}}};
};
