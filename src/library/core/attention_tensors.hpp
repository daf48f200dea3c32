// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "headgate/attention.hpp"
#include "headgate/headgate.h"

// The tensors of attention, a row each: inputs, outputs, what backward reads beside the inputs, and gradients. The C
// API, `headgate attend`, the Python package and the operation of PyTorch walk them.

namespace headgate {

/// The dimensions of an array that is viewed as (B,H,T,X).
enum class TensorKind {
  heads,   ///< all of them, in the order that a layout says
  rows,    ///< (B,H,T): a number for each query of a head
  scores,  ///< (B,H,T,S), of which inputs may leave out leading ones
  vector,  ///< (N)
  table    ///< (B,M)
};

/// The element types that a tensor may have.
enum class Elements { floats, of_q, of_q_or_i8, of_q_or_f32, f32, f32_or_f64, boolean, integers, i32 };

/// The elements' types as NumPy and PyTorch name them, of a tensor that is read.
constexpr std::string_view types_of(Elements elements) {
  switch (elements) {
    case Elements::floats: return "float32, float64, bfloat16 or float16";
    case Elements::of_q: return "dtype of q";
    case Elements::of_q_or_i8: return "dtype of q, or int8";
    case Elements::of_q_or_f32: return "dtype of q, or float32";
    case Elements::f32: return "float32";
    case Elements::f32_or_f64: return "float32 or float64";
    case Elements::boolean: return "bool";
    case Elements::integers: return "int32 or int64";
    case Elements::i32: return "int32";
  }
  return "";
}

/// The same of an output, as it is made.
constexpr std::string_view output_types_of(Elements elements) {
  return elements == Elements::f32_or_f64 ? "float64 where q is, else float32" : types_of(elements);
}

/// How `headgate attend` takes or writes a tensor.
struct TensorFile {
  std::string_view option = {};  ///< "--q"; empty: it has none
  std::string_view name = {};    ///< what --help calls the option's value; of a gradient, its file's name
};

/// What few tensors have.
struct TensorTraits {
  bool required = false;
  bool in_pages = false;      ///< with a block table, rows of pages
  bool forward_only = false;  ///< with it there are no gradients
  /// The input that must be given with it.
  ConstTensorView AttentionInputs::*needs = nullptr;
  /// Whether the C structs of an older version end before it.
  bool older_c_ends_here = false;
};

/// A tensor: a member of a struct of views, and of the struct that the C API has for it.
template <class StructOf, typename View, class CStruct, typename CTensor>
struct AttentionTensor {
  using Struct = StructOf;

  const char* name;  ///< of both members, and of the argument in Python
  View Struct::*member;
  CTensor CStruct::*c_member;
  TensorKind kind;
  Elements elements;
  std::string_view shape;  ///< of arrays, in the letters of attention.hpp
  std::string_view help;   ///< begins with a small letter
  TensorFile file;
  TensorTraits traits;
  ConstTensorView AttentionInputs::*gradient_of = nullptr;

  // A constructor: clang-format sets the arguments of a call in few lines.
  constexpr AttentionTensor(const char* its_name, View Struct::*its_member, CTensor CStruct::*its_c_member,
                            TensorKind its_kind, Elements its_elements, std::string_view its_shape,
                            std::string_view its_help, TensorFile its_file = {}, TensorTraits its_traits = {})
      : name(its_name),
        member(its_member),
        c_member(its_c_member),
        kind(its_kind),
        elements(its_elements),
        shape(its_shape),
        help(its_help),
        file(its_file),
        traits(its_traits) {}

  /// Whether the rows of a table are those of the members of both structs, each once.
  template <std::size_t kCount>
  static constexpr bool are_all_members(const std::array<AttentionTensor, kCount>& rows) {
    for (std::size_t i = 0; i < kCount; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (rows[i].member == rows[j].member || rows[i].c_member == rows[j].c_member) return false;
      }
    }
    return sizeof(Struct) == kCount * sizeof(View) && sizeof(CStruct) / sizeof(CTensor) == kCount;
  }
};

using AttentionInput =
    AttentionTensor<AttentionInputs, ConstTensorView, headgate_attention_inputs, headgate_const_tensor>;
using AttentionOutput = AttentionTensor<AttentionOutputs, TensorView, headgate_attention_outputs, headgate_tensor>;
using SavedTensor = AttentionTensor<AttentionSaved, ConstTensorView, headgate_attention_saved, headgate_const_tensor>;
using IncomingTensor =
    AttentionTensor<AttentionIncoming, ConstTensorView, headgate_attention_incoming, headgate_const_tensor>;
using AttentionGradient =
    AttentionTensor<AttentionGradients, TensorView, headgate_attention_gradients, headgate_tensor>;

/// The number of the row of `member`, which has one.
template <class Rows, typename Member>
constexpr std::size_t row_number(const Rows& rows, Member member) {
  std::size_t n = 0;
  while (rows[n].member != member) ++n;
  return n;
}

/// In the order of the structs, as all tables below.
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
                     {"--bias", "B.npy"}),
      AttentionInput("mask", &I::mask, &C::mask, scores, boolean, "(B|1,Hq|1,T|1,S)",
                     "true = visible; leading dimensions may be left out", {"--mask", "M.npy"}),
      AttentionInput("key_lengths", &I::key_lengths, &C::key_lengths, vector, integers, "(B)",
                     "keys of sequence b from key_lengths[b] on are hidden and not read", {"--key-lengths", "N.npy"}),
      AttentionInput("alibi_slopes", &I::alibi_slopes, &C::alibi_slopes, vector, f32_or_f64, "(Hq)",
                     "slope * |at_i - j| is taken off the scores", {"--alibi", "A.npy"}),
      AttentionInput("sinks", &I::sinks, &C::sinks, vector, f32_or_f64, "(Hq)",
                     "logits that join the softmax denominator without a value", {"--sinks", "S.npy"}),
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
      AttentionOutput("lse", &O::lse, &C::lse, rows, f32_or_f64, "(B,Hq,T)",
                      "log-sum-exp of each row's scores, natural logarithm, sink included", {"--lse", "LSE.npy"}),
      AttentionOutput("attn", &O::attn, &C::attn, heads, of_q, "(B,Hq,T,Dv)", "o, the output before the gate"),
      AttentionOutput("weights", &O::weights, &C::weights, scores, of_q, "(B,Hq,T,S)", "softmax weights exp(s - lse)",
                      {"--weights", "P.npy"}),
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

/// A gradient has the shape, the kind and the elements of its input.
inline constexpr auto kAttentionGradients = [] {
  using G = AttentionGradients;
  using C = headgate_attention_gradients;
  using I = AttentionInputs;
  const auto gradient = [](const char* name, TensorView G::*member, headgate_tensor C::*c_member,
                           ConstTensorView I::*of, std::string_view file) {
    const AttentionInput& input = kAttentionInputs[row_number(kAttentionInputs, of)];
    AttentionGradient row(name, member, c_member, input.kind, input.elements, input.shape, {}, {.name = file});
    row.gradient_of = of;
    return row;
  };
  return std::array{
      gradient("dq", &G::dq, &C::dq, &I::q, "dq"),
      gradient("dk", &G::dk, &C::dk, &I::k, "dk"),
      gradient("dv", &G::dv, &C::dv, &I::v, "dv"),
      gradient("dgate", &G::dgate, &C::dgate, &I::gate, "dz"),
      gradient("dbias", &G::dbias, &C::dbias, &I::bias, "dbias"),
      gradient("dsinks", &G::dsinks, &C::dsinks, &I::sinks, "dsinks"),
  };
}();
static_assert(AttentionGradient::are_all_members(kAttentionGradients));

/// The input that a gradient is of.
constexpr const AttentionInput& input_of_gradient(const AttentionGradient& gradient) {
  return kAttentionInputs[row_number(kAttentionInputs, gradient.gradient_of)];
}

/// A value for each row of a table of tensors, found by the row's number or by its member.
template <typename T, const auto& kRows>
class PerTensor {
 public:
  using Member = decltype(kRows.front().member);

  T& operator[](std::size_t row) { return values_[row]; }
  const T& operator[](std::size_t row) const { return values_[row]; }
  T& operator[](Member member) { return values_[row_number(kRows, member)]; }
  const T& operator[](Member member) const { return values_[row_number(kRows, member)]; }

 private:
  std::array<T, kRows.size()> values_{};
};

/// S; 0 where it would overflow, which the call refuses.
inline std::int64_t keys_of(const AttentionInputs& in) {
  std::int64_t keys = in.k.shape[2];
  if (in.block_table.present() && __builtin_mul_overflow(keys, in.block_table.shape[3], &keys)) return 0;
  return keys;
}

/// The last dimension of an output: those before it are (B,Hq,T).
inline std::int64_t last_dim(TensorKind kind, std::int64_t S, std::int64_t Dv) {
  if (kind == TensorKind::rows) return 1;
  return kind == TensorKind::scores ? S : Dv;
}

/// The element type that outputs of `elements` are made in.
inline DType output_dtype(Elements elements, DType q) {
  if (elements == Elements::of_q || q == DType::f64) return q;
  return DType::f32;
}

}  // namespace headgate
