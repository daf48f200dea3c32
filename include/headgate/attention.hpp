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
/// Exact gated attention (arXiv 2505.06708) in O(T) memory:
///
///     s    = softcap(scale · q kᵀ) − slope_h · |at_i − j| + bias             softcap(x) = c · tanh(x / c)
///     lse  = log( Σ_{j visible} exp(s_j) + exp(sink) )                       natural logarithm
///     o    = Σ_{j visible} exp(s_j − lse) v_j
///     y    = o ∘ g(z)   or   o + g(z)                                        z: raw gate logits
///
/// Letters: B batch, T queries, S keys, Hq query heads, Hkv key/value heads, D head dim of q and k, Dv head dim of v
/// and y. Hq is a multiple of Hkv, and query head h reads key/value head h / (Hq/Hkv). at_i is the key position of
/// query i: query_offsets[b] + i if query_offsets is present, otherwise i + S − T. The latter is the bottom-right
/// alignment of FlashAttention: the last query is at the last key. key_lengths does not change at_i.
///
/// A packed batch (varlen) holds N sequences of any lengths, one after the other, without padding. B is 1. q and all
/// tensors with a row for each query have T = T_0 + … + T_{N−1} rows; k and v have S = S_0 + … + S_{N−1} rows. Query i
/// of sequence n is row cu_seqlens_q[n] + i, and key j of sequence n is row cu_seqlens_k[n] + j. Queries see only keys
/// of their own sequence. The formulas above hold within a sequence, with T_n and S_n in place of T and S: at_i = i +
/// S_n − T_n, or query_offsets[n] + i.

namespace headgate {

/// The gate function g(z). sigmoid: σ(z). sigmoid2: 2σ(z). ns_sigmoid: ½ + ½σ(z). silu: zσ(z). softplus: log(1 + eᶻ).
/// identity: z. none: no gate.
enum class GateFn : std::int32_t {
  none = 0,
  sigmoid = 1,
  sigmoid2 = 2,
  ns_sigmoid = 3,
  silu = 4,
  softplus = 5,
  identity = 6
};

/// Largest supported head dims D and Dv.
inline constexpr std::int64_t kMaxHeadDim = 576;

/// Largest absolute value of an entry of query_offsets.
inline constexpr std::int64_t kMaxQueryOffset = std::int64_t{1} << 60;

/// The operation that combines the attention output o with the gate. mul: y = o ∘ g(z). add: y = o + g(z).
enum class GateOp : std::int32_t { mul = 0, add = 1 };

/// Causal masking. `causal` makes key j visible to query i iff j ≤ at_i.
enum class Causality : std::int32_t { none = 0, causal = 1 };

/// The precision of the factors in matrix products.
///
/// `exact` multiplies f32 numbers (f64 for f64 tensors), or bf16 numbers where that loses no precision.
///
/// `native16` multiplies bf16 numbers and adds in f32, with the instructions that native16_products() in runtime.hpp
/// names. q, k and v must be bf16. The softmax weights are rounded to bf16 before the product with v. The backward pass
/// also rounds dy ∘ g, and rounds the gradient ds of the scores before its products with q and k. For the error bounds,
/// see docs/reference/numerics.md.
///
/// `native16` permits bf16 products, and calls use them only where they are faster. Calls compute like `exact` in these
/// cases:
///
///   - on CPUs without these instructions
///   - for few queries
///   - with weights, gate_threshold or dropout
///   - with int8 k and v
enum class Precision : std::int32_t { exact = 0, native16 = 1 };

/// The options of attention. The defaults mean no mask, and a sigmoid gate if `gate` is present.
struct AttentionOptions {
  std::optional<double> scale{};  ///< factor of q kᵀ, finite; if empty, 1/√D
  double softcap = 0.0;           ///< c of the softcap, c > 0; 0 means no softcap
  Causality causality = Causality::none;
  /// Sliding window: key j is visible to query i iff at_i − window_left ≤ j ≤ at_i + window_right. −1 means no limit on
  /// that side. Below −1 the window excludes the query's own position: with window_left 9 and window_right −3, query i
  /// sees keys at_i − 9 … at_i − 3.
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  GateFn gate_fn = GateFn::sigmoid;  ///< ignored unless `gate` is present
  GateOp gate_op = GateOp::mul;
  ExecutionContext context{};  ///< threads, target and backend; results do not depend on the number of threads
  /// Threshold τ of the gate, finite and ≥ 0; 0 disables it. A row is one query of one head. A row with |g(z)| ≤ τ in
  /// every feature is closed: it is not computed, and its y is 0. The error of y is at most τ · max |v| over the
  /// visible keys. Closed rows cost almost nothing. Keys and values that no open row sees are not read. Forward pass
  /// only, with GateOp::mul. A row whose largest |g(z)| equals τ up to rounding may be open or closed.
  double gate_threshold = 0.0;
  Precision precision = Precision::exact;  ///< native16: q must be bf16
  /// Dropout probability p in [0, 1). The weights P become P ∘ M, where M is 0 with probability p and 1/(1 − p)
  /// otherwise. lse is computed without dropout. M depends only on dropout_seed, query head, query, key, and the
  /// sequence's number in the call. M does not depend on threads or target. Pass the same dropout and dropout_seed to
  /// the backward pass.
  double dropout = 0.0;
  std::int64_t dropout_seed = 0;
  /// Number of keys per entry of key_indices, at least 1. Entry e lists keys e · key_block_size … (e + 1) ·
  /// key_block_size − 1.
  std::int64_t key_block_size = 1;
};

/// The inputs of attention, with any strides. q and k are required. v is required unless the call computes only lse,
/// weights, max_logit or statistics. Other inputs may be absent. q, k and v have the same dtype: f32, f64, bf16 or f16.
/// k and v may also be i8, with scales. A key is visible if causality, window, mask, key_lengths and key_indices all
/// permit it. k and v of hidden keys must be finite, because 0 · ∞ is NaN. Keys beyond key_lengths are not read and may
/// hold anything.
struct AttentionInputs {
  ConstTensorView q{};     ///< (B,Hq,T,D), 1 ≤ D ≤ 576
  ConstTensorView k{};     ///< (B,Hkv,S,D); with a block table (P,Hkv,page,D)
  ConstTensorView v{};     ///< (B,Hkv,S,Dv), 1 ≤ Dv ≤ 576; with a block table (P,Hkv,page,Dv)
  ConstTensorView gate{};  ///< z (B,Hq,T,1) headwise or (B,Hq,T,Dv) elementwise; dtype of q, or f32
  ConstTensorView bias{};  ///< (B|1,Hq|1,T|1,S); dtype of q, or f32; −∞ hides the key; +∞ or NaN makes the row NaN
  ConstTensorView mask{};  ///< (B|1,Hq|1,T|1,S), boolean, true = visible
  /// (1,1,1,B), i32 or i64: number n of keys, 0 ≤ n ≤ S; keys j ≥ n are hidden and not read
  ConstTensorView key_lengths{};
  /// ALiBi slopes: (1,1,1,Hq), (1,1,B,Hq) or, in a packed batch, (1,1,N,Hq); f32 or f64
  ConstTensorView alibi_slopes{};
  /// Sink logits: (1,1,1,Hq), or (B|1,Hq,T,1) for each query, f32 or f64, finite or −∞. They enter only the softmax
  /// denominator.
  ConstTensorView sinks{};
  /// (1,1,1,B), i32 or i64, within ±kMaxQueryOffset: the key position of each sequence's first query. Example: a cache
  /// has S slots and n keys, and the T queries belong to the last T keys. Set key_lengths to n and query_offsets to n −
  /// T.
  ConstTensorView query_offsets{};
  /// (1,1,1,N+1), i32 or i64: the bounds of the sequences of a packed batch. Needs cu_seqlens_k or block_table. The
  /// first entry is 0, the last is T, and none decreases; equal entries make an empty sequence. key_lengths (n ≤ S_n)
  /// and query_offsets have N entries. bias, mask and weights have all T rows and S columns. Elements whose query and
  /// key belong to different sequences are not read in bias and mask, and are 0 in weights. Results of a sequence are
  /// bitwise identical to a separate call.
  ConstTensorView cu_seqlens_q{};
  /// (1,1,1,N+1), i32 or i64: the bounds of the sequences in k and v; the last bound is S
  ConstTensorView cu_seqlens_k{};
  /// The pages of each sequence: (1,1,B,M) or, in a packed batch, (1,1,N,M); i32; forward pass only. k and v consist of
  /// P pages of `page` ≥ 1 tokens. Key j of sequence b is row j % page of page e = block_table[b][j / page], 0 ≤ e < P.
  /// Sequences may share pages. S is M · page. key_lengths is required. Pages and table entries beyond key_lengths are
  /// not read. In a packed batch only the queries are packed: bias, mask and weights have the S columns of the query's
  /// own sequence. Without query_offsets, the last query of a sequence is at its last key, key_lengths[n] − 1.
  ConstTensorView block_table{};
  /// The scales of k: (B,Hkv,S,1) or, with a block table, (P,Hkv,page,1); f32; forward pass only. Required if k and v
  /// are i8, otherwise absent. Key j is k_scale[j] · k[j], and value j is v_scale[j] · v[j]. q may be f32, f64, bf16 or
  /// f16.
  ConstTensorView k_scale{};
  ConstTensorView v_scale{};  ///< scales of v, with the shape of k_scale
  /// A second bias, (B|1,1,1,S), f32, f64, bf16 or f16. It is added to the scores of a key for all heads and queries.
  /// −∞ hides the key. key_bias has no gradient.
  ConstTensorView key_bias{};
  /// Lists of keys: (B|1,Hkv|1,T,K), i32 or i64. Query i sees key j only if list i has j. With key_block_size > 1, list
  /// i must have the block of key j instead. The other rules (causality, window, mask, key_lengths) must permit key j
  /// too. Entry −1 is empty. Repeated entries count once. Other entries must be at least 0 and below S /
  /// key_block_size, rounded up. In a packed batch, keys are numbered within the query's sequence, and S is S_n. The
  /// time of both passes and of statistics grows with K, not with S.
  ConstTensorView key_indices{};
  /// The first F keys of each sequence, not rounded to int8: (B,Hkv,F,D) or, in a packed batch, (N,Hkv,F,D); f32, f64,
  /// bf16 or f16; forward pass only. Needs k of dtype i8, and v_first. Keys and values j < F are k_first[j] and
  /// v_first[j]. Rows j < F of k, v and their scales are ignored. F may exceed the number of keys.
  ConstTensorView k_first{};
  ConstTensorView v_first{};  ///< the first F values: (B|N,Hkv,F,Dv), dtype of k_first
};

/// The outputs of the forward pass, which overwrites them. Leave y and attn absent to compute only lse, weights or
/// max_logit.
struct AttentionOutputs {
  TensorView y{};        ///< (B,Hq,T,Dv), dtype of q; if absent, v and gate are not read and gate_threshold must be 0
  TensorView lse{};      ///< (B,Hq,T,1), f32 or f64, natural log, including the sink; −∞ if no key is visible
  TensorView attn{};     ///< o (B,Hq,T,Dv), dtype of q: the output before the gate
  TensorView weights{};  ///< (B,Hq,T,S), dtype of q: exp(s − lse) times the dropout mask; takes T·S memory
  /// The largest score s of the visible keys, without the sink; f32 or f64. The shape (B,Hq,T,1) gives a maximum for
  /// each row. The shape (B,Hq,1,1), in a packed batch (N,Hq,1,1), gives a maximum for each head of a sequence. −∞ if
  /// no key is visible, and in rows that gate_threshold closes. NaN where lse is NaN.
  TensorView max_logit{};
};

/// Computes y = gate(z) ∘ softmax(scale · q kᵀ + bias, mask) v.
///
/// A row with no visible key has o = 0. Its lse is −∞ or, with a sink, the sink logit. A row closed by gate_threshold
/// has y = 0, o = 0, weights = 0, max_logit = −∞ and lse = +∞, which attention_backward refuses. The last bits of an
/// open row may depend on which other rows of its head are open. Sums and the gate are computed in f32 or better.
/// Results are rounded to the storage type once. Results are bitwise identical for any number of threads.
///
/// Outputs must not overlap inputs or each other. Throws headgate::Error for invalid arguments, before anything is
/// written, and std::bad_alloc if memory runs out. Throws Cancelled if options.context cancels the call; the outputs
/// are then unspecified.
HEADGATE_API void attention_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                                    const AttentionOptions& options = {});

/// Outputs of the forward pass that the backward pass reads. y and lse are always required. attn depends on the gate:
///
///   - GateOp::mul with silu or identity: attn is required for dgate, because y does not determine attn where g(z) = 0.
///   - GateOp::add: attn is optional, but avoids the cancellation in y − g(z).
///   - GateOp::mul with another gate function: attn is optional. In f16 it avoids errors of dgate behind nearly closed
///     gates, where y is subnormal and has few digits.
///   - No gate: attn is not needed.
struct AttentionSaved {
  ConstTensorView y{};     ///< (B,Hq,T,Dv)
  ConstTensorView lse{};   ///< (B,Hq,T,1), f32 or f64, sink included
  ConstTensorView attn{};  ///< (B,Hq,T,Dv)
};

/// Gradients to compute; each may be absent. Existing values are overwritten, not added to.
struct AttentionGradients {
  TensorView dq{};      ///< (B,Hq,T,D), dtype of q
  TensorView dk{};      ///< (B,Hkv,S,D), dtype of q; summed over the query heads of the key/value head
  TensorView dv{};      ///< (B,Hkv,S,Dv), dtype of q
  TensorView dgate{};   ///< shape and dtype of gate; summed over Dv when headwise
  TensorView dbias{};   ///< shape and dtype of bias; summed over its broadcast dimensions
  TensorView dsinks{};  ///< shape and dtype of sinks; summed over the batches and queries that share a logit
};

/// Incoming gradients. dy is required.
struct AttentionIncoming {
  ConstTensorView dy{};    ///< (B,Hq,T,Dv), dtype of q
  ConstTensorView dlse{};  ///< (B,Hq,T,1), f32 or f64; absent means zero
};

/// Computes the gradients of Σ dy∘y + Σ dlse·lse. With P = exp(s − lse) and d_o, the gradient of o:
///
///     d_o = dy ∘ g(z) (mul) or dy (add);  Δ = rowsum(d_o ∘ o) = rowsum(dy ∘ y) for mul;
///     ds = P ∘ (M ∘ d_o vᵀ − Δ + dlse);  dq = scale · ds' k;  dk = scale · ds'ᵀ q;  dv = (P ∘ M)ᵀ d_o;  dbias = ds;
///     dsink = −exp(sink − lse)(Δ − dlse);  dz = dy ∘ o ∘ g′(z), for sigmoid dy ∘ y ∘ (1 − g);
///
/// With a softcap c, ds' is ds ∘ (1 − tanh²(scale · q kᵀ / c)); otherwise ds' = ds. M is the dropout mask, or 1 without
/// dropout. Sums are f32 or better. Needs no T×S buffer. Results are deterministic. Throws like attention_forward. Also
/// throws Error for a gate_threshold above 0 and for a saved lse of +∞: rows that were not computed have no gradients.
HEADGATE_API void attention_backward(const AttentionGradients& gradients, const AttentionInputs& inputs,
                                     const AttentionSaved& saved, const AttentionIncoming& incoming,
                                     const AttentionOptions& options = {});

}  // namespace headgate

#endif  // HEADGATE_ATTENTION_HPP_
