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
/// Computes attention over ranges of keys and merges the results. Useful for ring and context-parallel attention, and
/// for KV caches in several memories.
///
/// Forward pass:
///
/// - narrow_keys() returns the inputs for one range of keys.
/// - attention_forward() computes attn_i and lse_i of each range, without `gate` and with `sinks` in one range only.
/// - attention_merge() merges the parts and applies the gate.
///
/// There are two ways to compute the backward pass:
///
/// - Call attention_merge_backward(), which computes dattn_i, dlse_i and dgate from dy. Then call attention_backward()
///   for each range without a gate. Pass dattn_i and dlse_i as dy and dlse, and attn_i and lse_i as y and lse.
/// - Or call only attention_backward() for each range, with the gate and the incoming dy and dlse. Pass y, attn and lse
///   of the merged result. The weights exp(s − lse) and Δ in attention_backward() are then those of all keys. Each of
///   these calls computes the complete dgate and dsinks: request both in one call only, and pass `sinks` to this call.
///
/// In both ways dk, dv and dbias of a range are final; dq is the sum over the ranges.
///
/// The dropout mask depends on the index of a key within its range. A single call for all keys would therefore drop
/// other weights. Ranges with equal seeds drop the same pattern. Give each range a different dropout_seed, and use
/// it in both passes.

namespace headgate {

/// Returns a view of the elements [begin, end) of a dimension. 0 ≤ begin ≤ end ≤ shape[dimension].
template <typename Void>
constexpr BasicTensorView<Void> narrow(BasicTensorView<Void> view, std::size_t dimension, std::int64_t begin,
                                       std::int64_t end) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const unsigned char, unsigned char>;
  const std::int64_t step = begin * view.strides[dimension] * static_cast<std::int64_t>(dtype_bytes(view.dtype));
  if (view.data != nullptr && end > begin) view.data = static_cast<Byte*>(view.data) + step;
  view.shape[dimension] = end - begin;
  return view;
}

/// Query offsets and key lengths for one range of keys. narrow_keys() computes them.
struct KeyRangeVectors {
  std::vector<std::int64_t> query_offsets;  ///< (B): the key position of query 0, counted from key `begin`
  std::vector<std::int64_t> key_lengths;    ///< (B): key_lengths of the range; empty if the inputs have none
};

/// Returns `inputs` restricted to the keys [begin, end). Narrows k, v, their scales, k_first, v_first, and the columns
/// of bias, key_bias and mask. Makes key lengths and query offsets relative to key `begin`, so that causality, window
/// and ALiBi do not change. Stores both in `vectors`. The result points into `inputs` and `vectors`, which must outlive
/// it. Keeps `sinks` and `gate`. Remove them for calls that must not apply them, as described at the top of this file.
///
/// Throws Error in these cases:
///
///   - The batch is packed, or block_table or key_indices is given.
///   - The range violates 0 ≤ begin ≤ end ≤ S.
///   - q, k or v is absent, sizes differ, or key_lengths or query_offsets are invalid (attention.hpp).
HEADGATE_API AttentionInputs narrow_keys(const AttentionInputs& inputs, std::int64_t begin, std::int64_t end,
                                         KeyRangeVectors& vectors);

/// The result of attention over one range of keys: `attn` and `lse` of attention_forward() without a gate.
struct MergePart {
  ConstTensorView attn{};  ///< (B,Hq,T,Dv); f32, f64, bf16 or f16, the same dtype for all parts
  ConstTensorView lse{};   ///< (B,Hq,T,1), f32 or f64
};

/// Merges parts: lse = log Σ_i exp(lse_i),  attn = Σ_i exp(lse_i − lse) attn_i,  y = attn ∘ g(z) or attn + g(z).
///
/// `outputs` must have at least one of y, lse and attn, and no weights. `gate` is z, (B,Hq,T,1) or (B,Hq,T,Dv), in the
/// dtype of the parts or f32. Without a gate, y is attn. Only gate_fn, gate_op and context of `options` are used.
///
/// In rows with lse_i = −∞, part i is ignored and its attn is not read. If all lse_i are −∞, attn is 0 and lse is −∞.
/// lse_i = +∞ marks a row that was not computed and is refused. Only one part may include the sink in its lse. Sums are
/// f32 or better, in the order of the parts. Results are bitwise identical for any number of threads. Throws Error for
/// invalid arguments or no parts, before anything is written, and std::bad_alloc if memory runs out. Throws Cancelled
/// if options.context cancels the call; the outputs are then unspecified.
HEADGATE_API void attention_merge(const AttentionOutputs& outputs, std::span<const MergePart> parts,
                                  const ConstTensorView& gate = {}, const AttentionOptions& options = {});

/// Gradients of one part to compute; each may be absent.
struct MergePartGradients {
  TensorView attn{};  ///< (B,Hq,T,Dv), dtype of the part's attn
  TensorView lse{};   ///< (B,Hq,T,1), f32 or f64
};

/// Computes the gradients of Σ dy∘y + Σ dlse·lse through attention_merge(). With w_i = exp(lse_i − lse):
///
///     dattn = dy ∘ g(z) (mul) or dy (add, or no gate);  dz = dy ∘ attn ∘ g′(z) (mul) or dy ∘ g′(z) (add);
///     dattn_i = w_i · dattn;  dlse_i = w_i · (dlse + rowsum(dattn ∘ (attn_i − attn))).
///
/// Recomputes attn and lse from the parts. `gradients` has one element for each part. `dgate` may be absent. It has the
/// shape and dtype of gate; a headwise dgate is summed over Dv. Gradients are overwritten. They are 0 where
/// attention_merge() ignores a part. Throws like attention_merge().
HEADGATE_API void attention_merge_backward(std::span<const MergePartGradients> gradients, const TensorView& dgate,
                                           std::span<const MergePart> parts, const ConstTensorView& gate,
                                           const AttentionIncoming& incoming, const AttentionOptions& options = {});

}  // namespace headgate

#endif  // HEADGATE_MERGE_HPP_
