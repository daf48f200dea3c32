// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_LINEAR_ATTENTION_HPP_
#define HEADGATE_LINEAR_ATTENTION_HPP_

#include <cstdint>
#include <optional>

#include "headgate/attention.hpp"
#include "headgate/error.hpp"
#include "headgate/export.h"
#include "headgate/runtime.hpp"
#include "headgate/tensor.hpp"

/// @file
/// Gated linear attention with the delta rule: the exact recurrence of Gated DeltaNet. Each head has a state S (D,Dv)
/// in place of a KV cache. Token t updates the state S_{t−1} by one of these rules:
///
///   rule         | state
///   ---|---
///   linear       | S_t = S_{t−1} + k_t v_tᵀ
///   gated        | S_t = e^{g_t} S_{t−1} + k_t v_tᵀ
///   delta        | S_t = S_{t−1} + β_t k_t (v_t − S_{t−1}ᵀ k_t)ᵀ
///   gated_delta  | S_t = e^{g_t} S_{t−1} + β_t k_t (v_t − (e^{g_t} S_{t−1})ᵀ k_t)ᵀ
///
///     y_t = scale · S_tᵀ q_t
///
/// The decay g_t is one number for the whole state of a head, or one number for each row of the state (feature of k).
/// These are the semantics of the operator LinearAttention of ONNX (opset 27).
///
/// Letters: B batch, T tokens, D head dim of q and k, Dv head dim of v and y. q has Hq heads, k has Hk, v has Hv, and y
/// has Ho = max(Hq, Hv). Each head of v has a state. Hv is a multiple of Hk, and state h reads key head h / (Hv/Hk).
///
/// If Hq is a multiple of Hv, query heads share a state, as in ONNX: head h of y reads query head h and state h /
/// (Hq/Hv). If Hv is a multiple of Hq, states share a query head, as in Gated DeltaNet: head h of y reads query head h
/// / (Hv/Hq) and state h.
///
/// A packed batch (varlen) holds N sequences one after the other, without padding. B is 1, and token i of sequence n is
/// row cu_seqlens[n] + i of all tensors with a row for each token. Each sequence has its own state. Without cu_seqlens,
/// N is B.

namespace headgate {

/// The rule by which a token changes the state. The formulas are at the top of this file.
enum class LinearRule : std::int32_t { gated_delta = 0, delta = 1, gated = 2, linear = 3 };

/// The largest D and Dv of linear attention.
inline constexpr std::int64_t kMaxStateDim = 256;

/// The options of linear attention.
struct LinearAttentionOptions {
  LinearRule rule = LinearRule::gated_delta;
  std::optional<double> scale{};  ///< factor of S_tᵀ q_t in y_t, finite; if empty, 1/√D
  /// The eps ≥ 0 of the normalization of q and k: each row is first divided by its L2 norm √(Σ x² + eps). If empty, q
  /// and k are not normalized. A row of zeros stays zero. With eps 0, gradients of such a row are zero too.
  std::optional<double> l2_norm{};
  /// Precision of the factors in products. `native16` needs bf16 q, k and v. It permits a pass to multiply bf16 numbers
  /// and add in f32, with the instructions that native16_products() names. The pass takes chunks of 32 tokens. It
  /// rounds these factors and their gradients to bf16 (docs/reference/numerics.md has the error bounds):
  ///
  ///   - q and k, after the norm; in the forward pass q times scale
  ///   - q·k times the decay between the two tokens
  ///   - the state as a factor; the state itself is kept in f32
  ///   - the values that tokens write to the state, and these values times their decay
  ///
  /// Passes compute like `exact` in these cases:
  ///
  ///   - on CPUs without these instructions
  ///   - for sequences of fewer than 32 tokens
  ///   - with a decay for each feature
  ///   - in the backward pass, for sequences where decays of consecutive tokens in a chunk multiply to more than 64
  ///
  /// Weights and statistics are always those of `exact`.
  Precision precision = Precision::exact;
  /// Threads and target. Results do not depend on the number of threads. `backend` has no effect: the CPU kernels
  /// compute every call.
  ExecutionContext context{};
};

/// The inputs of linear attention, with any strides. q, k and v are required and share a dtype: f32, f64, bf16 or f16.
struct LinearAttentionInputs {
  ConstTensorView q{};  ///< (B,Hq,T,D), 1 ≤ D ≤ 256
  ConstTensorView k{};  ///< (B,Hk,T,D)
  ConstTensorView v{};  ///< (B,Hv,T,Dv), 1 ≤ Dv ≤ 256
  /// Natural logarithms g of the decay: (B,Hv,T,1), or (B,Hv,T,D) for one decay per feature. dtype of q, or f32.
  /// Usually −∞ ≤ g ≤ 0. Only for the rules gated and gated_delta. Absent means g = 0, no decay.
  ConstTensorView decay{};
  /// β (B,Hv,T,1), or (B,1,T,1) if all heads share it; dtype of q, or f32. Only for the rules delta and gated_delta;
  /// absent means 1.
  ConstTensorView beta{};
  ConstTensorView state{};       ///< S_0 (N,Hv,D,Dv), f32 or f64; absent means 0
  ConstTensorView cu_seqlens{};  ///< (1,1,1,N+1), i32 or i64: bounds of a packed batch, non-decreasing from 0 to T
  /// Lengths after which to write states to `snapshots`: (1,1,N,M), or (1,1,1,M) for all sequences, i32 or i64. Entry
  /// [n,m] is a number of tokens of sequence n, from 0 (the state S_0) to all its tokens. Entries of a row do not
  /// decrease. Only linear_attention_forward() accepts snapshot_lengths; other functions refuse it.
  ConstTensorView snapshot_lengths{};
};

/// The outputs of the forward pass, which overwrites them. y is required.
struct LinearAttentionOutputs {
  TensorView y{};  ///< (B,Ho,T,Dv), dtype of q
  /// S_T (N,Hv,D,Dv), f32 or f64; may be the same view as inputs.state, to update the state in place
  TensorView state{};
  /// States after chosen numbers of tokens, (N·M,Hv,D,Dv), f32 or f64. Row n·M + m is the state after
  /// snapshot_lengths[n,m] tokens of sequence n. Must be present if snapshot_lengths is, and absent otherwise.
  TensorView snapshots{};
};

/// Computes the recurrence for T ≥ 0 tokens: a prompt, a continuation from a state, or a single new token. States and
/// sums are f32 or better, whatever the dtype of q. Memory is at most O(T·D). Results are bitwise identical for any
/// number of threads.
///
/// Snapshots divide a sequence into parts. Results are bitwise identical to separate calls for the parts, where each
/// call starts from the snapshot before its part. A snapshot after every token thus gives the results of T calls for
/// one token.
///
/// Outputs must not overlap inputs or each other, except for a state updated in place. Throws headgate::Error for
/// invalid arguments, before anything is written, and std::bad_alloc if memory runs out. Throws Cancelled if
/// options.context cancels the call; the outputs are then unspecified.
HEADGATE_API void linear_attention_forward(const LinearAttentionOutputs& outputs, const LinearAttentionInputs& inputs,
                                           const LinearAttentionOptions& options = {});

/// Incoming gradients. dy is required.
struct LinearAttentionIncoming {
  ConstTensorView dy{};      ///< (B,Ho,T,Dv), dtype of q
  ConstTensorView dstate{};  ///< gradient of S_T (N,Hv,D,Dv), f32 or f64; absent means zero
};

/// Gradients to compute; each may be absent. Existing values are overwritten, not added to. Each gradient has the shape
/// and dtype of its input. It is summed over the heads that share the input.
struct LinearAttentionGradients {
  TensorView dq{};      ///< (B,Hq,T,D)
  TensorView dk{};      ///< (B,Hk,T,D)
  TensorView dv{};      ///< (B,Hv,T,Dv)
  TensorView ddecay{};  ///< (B,Hv,T,1|D)
  TensorView dbeta{};   ///< (B,Hv|1,T,1)
  TensorView dstate{};  ///< gradient of S_0 (N,Hv,D,Dv)
};

/// Computes the gradients of Σ dy∘y + Σ dstate∘S_T from the inputs alone: the states are recomputed. Sums are f32 or
/// better. Memory is O(T·D + T/64·D·Dv) for each head that is being computed. Results are deterministic. Throws like
/// linear_attention_forward.
HEADGATE_API void linear_attention_backward(const LinearAttentionGradients& gradients,
                                            const LinearAttentionInputs& inputs,
                                            const LinearAttentionIncoming& incoming,
                                            const LinearAttentionOptions& options = {});

}  // namespace headgate

#endif  // HEADGATE_LINEAR_ATTENTION_HPP_
