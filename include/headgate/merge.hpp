// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_MERGE_HPP_
#define HEADGATE_MERGE_HPP_

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "headgate/attention.hpp"
#include "headgate/error.hpp"
#include "headgate/export.h"
#include "headgate/tensor.hpp"

/// @file
/// Attention over keys in parts: what ring and context-parallel attention, and caches in several memories, are made of.
///
/// Forward: narrow_keys gives the inputs of each range of keys; attention_forward without `gate`, and with `sinks` in
/// one part alone, makes attn_i and lse_i of each; attention_merge makes the whole of them and applies the gate.
///
/// Backward, either
///
/// - attention_merge_backward makes dattn_i, dlse_i and dgate of dy, and attention_backward of each range takes
///   dattn_i and dlse_i as dy and dlse, its own attn_i and lse_i as y and lse, and no gate; or
/// - attention_backward of each range takes the gate, dy, dlse, and y, attn and lse of the whole: the weights
///   exp(s − lse) and Δ are then those of the whole, which no part has to know. dgate and dsinks depend on nothing
///   else and come out whole from any range: ask for them once, with the sinks.
///
/// In both dk, dv and dbias of a range are final, and dq is the sum of the ranges'.

namespace headgate {

/// Elements begin … end of a dimension, as a view into the same memory. 0 ≤ begin ≤ end ≤ shape[dimension].
template <typename Void>
constexpr BasicTensorView<Void> narrow(BasicTensorView<Void> view, std::size_t dimension, std::int64_t begin,
                                       std::int64_t end) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const unsigned char, unsigned char>;
  const std::int64_t step = begin * view.strides[dimension] * static_cast<std::int64_t>(dtype_bytes(view.dtype));
  if (view.data != nullptr && end > begin) view.data = static_cast<Byte*>(view.data) + step;
  view.shape[dimension] = end - begin;
  return view;
}

/// Holds the input vectors that differ between ranges of keys, for one range.
struct KeyRangeVectors {
  std::vector<std::int64_t> query_offsets;  ///< (B): at_0 − begin
  std::vector<std::int64_t> key_lengths;    ///< (B): keys of the range that lie below key_lengths; empty without those
};

/// `inputs` with keys begin … end alone: k, v and the columns of bias and mask narrowed to them, and query offsets
/// relative to key `begin`, so that causality, window and ALiBi are as in the whole. The result points into the memory
/// of `inputs` and into `vectors`, which it overwrites: both must live as long as it is used. `sinks` and `gate` stay;
/// take them out where they must not count again. Throws Error unless 0 ≤ begin ≤ end ≤ S, on key_lengths or
/// query_offsets without B integers in the ranges of attention.hpp, and on packed batches.
HEADGATE_API AttentionInputs narrow_keys(const AttentionInputs& inputs, std::int64_t begin, std::int64_t end,
                                         KeyRangeVectors& vectors);

/// Attention over a part of the keys: `attn` and `lse` of an attention_forward without a gate.
struct MergePart {
  ConstTensorView attn{};  ///< (B,Hq,T,Dv); f32, f64, bf16 or f16, the same for all parts
  ConstTensorView lse{};   ///< (B,Hq,T,1), f32 or f64
};

/// lse = log Σ_i exp(lse_i),  attn = Σ_i exp(lse_i − lse) attn_i,  y = attn ∘ g(z) or attn + g(z).
///
/// Of `outputs`, weights must be absent and the others may be, but not all; without `gate` y is attn. `gate` z is
/// (B,Hq,T,1) or (B,Hq,T,Dv), of the parts' dtype or f32. Of `options`, gate_fn, gate_op and context count.
/// A part whose lse is −∞ in a row counts for nothing there, and its attn is not read; where all are, attn is 0 and lse
/// −∞. An lse of +∞ marks a row that was not computed, and is refused. A sink must be in the lse of one part alone.
/// Sums in f32 or better, in the order of the parts; the same bits for any number of threads. Throws Error, before
/// anything is written, on arguments that do not fit, among them no parts at all; std::bad_alloc when memory runs out.
HEADGATE_API void attention_merge(const AttentionOutputs& outputs, std::span<const MergePart> parts,
                                  const ConstTensorView& gate = {}, const AttentionOptions& options = {});

/// Gradients of a part to write; each may be absent.
struct MergePartGradients {
  TensorView attn{};  ///< (B,Hq,T,Dv), dtype of the part's attn
  TensorView lse{};   ///< (B,Hq,T,1), f32 or f64
};

/// Gradients of Σ dy∘y + Σ dlse·lse of attention_merge. With w_i = exp(lse_i − lse):
///
///     dattn = dy ∘ g(z) (mul) or dy (add, or no gate);  dz = dy ∘ attn ∘ g′(z) (mul) or dy ∘ g′(z) (add);
///     dattn_i = w_i · dattn;  dlse_i = w_i · (dlse + Σ_x dattn ∘ (attn_i − attn)).
///
/// attn and lse are made again of the parts. `gradients`: one for each part; `dgate`, which may be absent: shape and
/// dtype of gate, summed over Dv when headwise. All are overwritten; 0 where a part counts for nothing. Errors as in
/// attention_merge.
HEADGATE_API void attention_merge_backward(std::span<const MergePartGradients> gradients, const TensorView& dgate,
                                           std::span<const MergePart> parts, const ConstTensorView& gate,
                                           const AttentionIncoming& incoming, const AttentionOptions& options = {});

}  // namespace headgate

#endif  // HEADGATE_MERGE_HPP_
