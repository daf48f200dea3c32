// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_ATTENTION_HPP_
#define HEADGATE_ATTENTION_HPP_

#include <cstdint>
#include <optional>

#include "headgate/error.hpp"
#include "headgate/export.h"
#include "headgate/runtime.hpp"
#include "headgate/tensor.hpp"

/// @file
/// Gated attention (arXiv 2505.06708), exact, in O(T) memory:
///
///     s    = softcap(scale · q kᵀ) − slope_h · |at_i − j| + bias             softcap(x) = c · tanh(x / c)
///     lse  = log( Σ_{j visible} exp(s_j) + exp(sink_h) )                     natural logarithm
///     o    = Σ_{j visible} exp(s_j − lse) v_j
///     y    = o ∘ g(z)   or   o + g(z)                                        z: raw gate logits
///
/// Letters: B batch, T queries, S keys, Hq query heads, Hkv key/value heads (Hq a multiple of Hkv; query head h reads
/// key/value head h / (Hq/Hkv)), D head dim of q and k, Dv head dim of v and y.
/// at_i is the key position at which query i stands: i + S − T, as in FlashAttention, so that the last query stands at
/// the last key; or query_offsets[b] + i. key_lengths does not move it.
///
/// A packed batch holds N sequences of any lengths, one after the other, without padding: B is 1, the T rows of q and
/// of all that has a row for each query hold T_0 + … + T_{N−1} queries, the S rows of k and v S_0 + … + S_{N−1} keys.
/// Query i of sequence n is row cu_seqlens_q[n] + i, its key j row cu_seqlens_k[n] + j. Queries see keys of their own
/// sequence alone, and T_n, S_n, i and j take the places of T, S, i and j above: at_i = i + S_n − T_n, or
/// query_offsets[n] + i.

namespace headgate {

/// g(z). sigmoid σ(z); sigmoid2 2σ(z); ns_sigmoid ½ + ½σ(z); silu zσ(z); softplus log(1 + eᶻ); identity z; none: no
/// gate.
enum class GateFn : std::int32_t {
  none = 0,
  sigmoid = 1,
  sigmoid2 = 2,
  ns_sigmoid = 3,
  silu = 4,
  softplus = 5,
  identity = 6
};

/// The largest D and Dv.
inline constexpr std::int64_t kMaxHeadDim = 512;

/// The largest magnitude of a query offset.
inline constexpr std::int64_t kMaxQueryOffset = std::int64_t{1} << 60;

/// How g(z) meets the attention output o: mul y = o ∘ g(z), add y = o + g(z).
enum class GateOp : std::int32_t { mul = 0, add = 1 };

/// causal: key j is visible to query i iff j ≤ at_i.
enum class Causality : std::int32_t { none = 0, causal = 1 };

/// What products are made of. exact: f32 numbers (f64 for f64), or bf16 numbers where nothing is lost by it. native16,
/// for bf16 q, k and v: bf16 numbers with f32 sums, in the instructions of the CPU (native16_products() in
/// runtime.hpp). The weights are then rounded to bf16 before they meet v; backward also dy ∘ g, and ds before it meets
/// q and k (docs/reference/numerics.md has the bounds). native16 permits this where it is faster: on CPUs without it,
/// and for what its kernels leave out (weights, gate_threshold, dropout, int8 k and v, few queries, dbias), calls
/// compute as exact does.
enum class Precision : std::int32_t { exact = 0, native16 = 1 };

/// How attention is computed; the defaults are plain attention with a sigmoid gate.
struct AttentionOptions {
  std::optional<double> scale{};  ///< 1/√D when empty; finite
  double softcap = 0.0;           ///< c > 0; 0 for no cap
  Causality causality = Causality::none;
  /// Key j is visible to query i iff at_i − window_left ≤ j ≤ at_i + window_right; −1 for no limit. Below −1 the window
  /// lies beside the query: with window_left 9, window_right −3 it sees keys at_i − 9 … at_i − 3.
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  GateFn gate_fn = GateFn::sigmoid;  ///< read only when `gate` is present
  GateOp gate_op = GateOp::mul;
  ExecutionContext context{};  ///< how the call runs; the same bits for any number of threads
  /// τ ≥ 0, finite; 0: off. A row (a query of a head) whose gate is small, |g(z)| ≤ τ in every feature, is closed: it
  /// is not computed, and its part of y is 0, within τ · max |v| over the keys that it sees. Closed rows cost next to
  /// nothing, and keys and values that no open row sees are not read. Forward only, with a gate that multiplies. A gate
  /// within rounding of τ may fall on either side.
  double gate_threshold = 0.0;
  Precision precision = Precision::exact;  ///< native16: q must be bf16
  /// p in [0, 1): y is made of weights P ∘ M, where M is 0 with probability p and 1/(1 − p) else; lse is that of P. M
  /// is a function of dropout_seed and of a weight's sequence (its number in the call), query head, query and key: the
  /// same for any number of threads and on every target, and in the backward pass, which needs both options again.
  double dropout = 0.0;
  std::int64_t dropout_seed = 0;
};

/// What the operation reads. q, k and v are required and share one of f32, f64, bf16, f16, or k and v are i8 with
/// scales; the rest may be absent. Any strides. Visibility by causality, window, mask and key_lengths combines by
/// "and". k and v of a key that only causality, window, mask or bias hides must be finite: 0 · ∞ is NaN. Keys beyond
/// key_lengths may hold anything.
struct AttentionInputs {
  ConstTensorView q{};     ///< (B,Hq,T,D), 1 ≤ D ≤ 512
  ConstTensorView k{};     ///< (B,Hkv,S,D); with a block table (P,Hkv,page,D)
  ConstTensorView v{};     ///< (B,Hkv,S,Dv), 1 ≤ Dv ≤ 512; with a block table (P,Hkv,page,Dv)
  ConstTensorView gate{};  ///< z (B,Hq,T,1) headwise or (B,Hq,T,Dv) elementwise; dtype of q, or f32
  ConstTensorView bias{};  ///< (B|1,Hq|1,T|1,S); dtype of q, or f32; −∞ hides the key; +∞ and NaN give NaN rows
  ConstTensorView mask{};  ///< (B|1,Hq|1,T|1,S), boolean, true = visible
  ConstTensorView key_lengths{};   ///< (1,1,1,B), i32 or i64, 0 ≤ n ≤ S: keys ≥ n are hidden and not read
  ConstTensorView alibi_slopes{};  ///< (1,1,1,Hq) or (1,1,B,Hq), of a packed batch (1,1,N,Hq), f32 or f64
  ConstTensorView sinks{};         ///< (1,1,1,Hq), f32 or f64: a logit that joins the denominator without a value
  /// (1,1,1,B), i32 or i64, within ±kMaxQueryOffset: the key position of the first query of each sequence. With T new
  /// tokens at the end of n keys in a cache of S slots: key_lengths n, query_offsets n − T.
  ConstTensorView query_offsets{};
  /// (1,1,1,N+1), i32 or i64, both, or cu_seqlens_q and a block table: a packed batch (above). 0 first, never
  /// decreasing (equal: an empty sequence), T and S last. key_lengths (n ≤ S_n) and query_offsets then have N entries;
  /// bias, mask and weights keep their shapes over all T rows and S columns, of which those of another sequence are not
  /// read, and written as 0. A sequence gets the same bits as by itself.
  ConstTensorView cu_seqlens_q{};
  ConstTensorView cu_seqlens_k{};
  /// (1,1,B,M), of a packed batch (1,1,N,M), i32. Forward only. k and v are P pages of `page` ≥ 1 tokens, and key j of
  /// sequence b is row j % page of page e = block_table[b][j / page], 0 ≤ e < P; sequences may share pages. S = M ·
  /// page, and key_lengths, required, says how many keys are there. Entries and pages of no key before the length are
  /// not read. Of a packed batch only the queries are packed: bias, mask and weights have the S columns of a query's
  /// own sequence, and where query_offsets are absent the last query of a sequence stands at the last of its
  /// key_lengths[n] keys.
  ConstTensorView block_table{};
  /// (B,Hkv,S,1), with a block table (P,Hkv,page,1), f32. Forward only; required with k and v of dtype i8, else absent:
  /// key j is k_scale[j] · k[j], its value v_scale[j] · v[j]. q is then of any of its dtypes, which y has.
  ConstTensorView k_scale{};
  ConstTensorView v_scale{};  ///< as k_scale
};

/// What the forward pass writes (overwrites). y is required.
struct AttentionOutputs {
  TensorView y{};        ///< (B,Hq,T,Dv), dtype of q
  TensorView lse{};      ///< (B,Hq,T,1), f32 or f64, natural log, sink included; −∞ for a row that sees nothing
  TensorView attn{};     ///< o (B,Hq,T,Dv), dtype of q: the output before the gate
  TensorView weights{};  ///< exp(s − lse) ∘ M (B,Hq,T,S), dtype of q: T·S large, for small problems
};

/// y = gate(z) ∘ softmax(scale · q kᵀ + bias, mask) v.
///
/// A row with no visible key has o = 0 and lse = −∞ (the sink's logit when there is one). A row that gate_threshold
/// closes has y = 0, o = 0, weights = 0 and lse = +∞, which attention_backward refuses; the last bits of an open row
/// may depend on which other rows of its head are open. 16-bit types accumulate in f32; the gate is applied in f32 or
/// better before the one rounding to storage. Deterministic: the same bits for any number of threads. Outputs must not
/// overlap inputs or each other. Throws headgate::Error, before anything is written, on arguments that do not fit;
/// std::bad_alloc when memory runs out.
HEADGATE_API void attention_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                                    const AttentionOptions& options = {});

/// What the backward pass needs of the forward pass.
///
/// gate                                                   | needed
/// ---|---
/// none; sigmoid, sigmoid2, ns_sigmoid, softplus with mul | y, lse
/// silu, identity with mul (g may be 0: o is lost in y)   | y, lse; attn for dgate
/// any with add                                           | y, lse; attn spares the cancellation in o = y − g(z)
struct AttentionSaved {
  ConstTensorView y{};     ///< (B,Hq,T,Dv)
  ConstTensorView lse{};   ///< (B,Hq,T,1), f32 or f64, sink included
  ConstTensorView attn{};  ///< (B,Hq,T,Dv)
};

/// Gradients to write; each may be absent. All are overwritten, never added to.
struct AttentionGradients {
  TensorView dq{};      ///< (B,Hq,T,D), dtype of q
  TensorView dk{};      ///< (B,Hkv,S,D), dtype of q, summed over the query heads of the group
  TensorView dv{};      ///< (B,Hkv,S,Dv), dtype of q
  TensorView dgate{};   ///< shape and dtype of gate; summed over Dv when headwise
  TensorView dbias{};   ///< shape and dtype of bias; summed over its broadcast dimensions
  TensorView dsinks{};  ///< (1,1,1,Hq), dtype of sinks
};

/// Incoming gradients. dy is required.
struct AttentionIncoming {
  ConstTensorView dy{};    ///< (B,Hq,T,Dv), dtype of q
  ConstTensorView dlse{};  ///< (B,Hq,T,1), f32 or f64; absent means zero
};

/// Gradients of Σ dy∘y + Σ dlse·lse. With P = exp(s − lse):
///
///     do = dy ∘ g(z) (mul) or dy (add);  Δ = rowsum(do ∘ o) = rowsum(dy ∘ y) for mul;
///     ds = P ∘ (M ∘ do vᵀ − Δ + dlse);  dq = scale · ds' k;  dk = scale · ds'ᵀ q;  dv = (P ∘ M)ᵀ do;  dbias = ds;
///     dsink = −exp(sink − lse)(Δ − dlse);  dz = dy ∘ o ∘ g′(z), for sigmoid dy ∘ y ∘ (1 − g);
///
/// with ds' = ds ∘ (1 − tanh²) under a softcap and ds otherwise, and M that of dropout, 1 without.
/// Gradients accumulate in f32 or better. No T×S buffer; deterministic. Errors as in attention_forward, and on a
/// gate_threshold above 0 and a saved lse of +∞: of a row that was not computed there are no gradients.
HEADGATE_API void attention_backward(const AttentionGradients& gradients, const AttentionInputs& inputs,
                                     const AttentionSaved& saved, const AttentionIncoming& incoming,
                                     const AttentionOptions& options = {});

}  // namespace headgate

#endif  // HEADGATE_ATTENTION_HPP_
