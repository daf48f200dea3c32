// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_LINEAR_ATTENTION_HPP_
#define HEADGATE_LINEAR_ATTENTION_HPP_

#include <cstdint>
#include <optional>

#include "headgate/error.hpp"
#include "headgate/export.h"
#include "headgate/runtime.hpp"
#include "headgate/tensor.hpp"

/// @file
/// Gated linear attention with the delta rule: the recurrence of Gated DeltaNet, exact. A head keeps a state S (D,Dv)
/// in place of keys and values. From its state S_{t−1}, for one token after the other:
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
/// with a decay g_t for the whole state of a head, or one for each of its D rows (each feature of k). These are the
/// semantics of the operator LinearAttention of ONNX (opset 27).
///
/// Letters: B batch, T tokens, D head dim of q and k, Dv head dim of v and y; Hv heads of v, each with a state; Hk
/// heads of k; Hq heads of q; Ho heads of y, the larger of Hq and Hv. Hv is a multiple of Hk, and state h reads key
/// head h / (Hv/Hk). Either Hq is a multiple of Hv, and query heads share a state (as in ONNX): head h of y reads query
/// head h and state h / (Hq/Hv). Or Hv is a multiple of Hq, and states share a query head (as in Gated DeltaNet): head
/// h of y reads query head h / (Hv/Hq) and state h.
///
/// A packed batch holds N sequences one after the other, without padding: B is 1, and token i of sequence n is row
/// cu_seqlens[n] + i of all tensors that have a row for each token. Each sequence has a state of its own. Without
/// cu_seqlens, N is B.

namespace headgate {

/// How a token changes the state; the table above.
enum class LinearRule : std::int32_t { gated_delta = 0, delta = 1, gated = 2, linear = 3 };

/// The largest D and Dv of linear attention.
inline constexpr std::int64_t kMaxStateDim = 256;

/// How linear attention is computed.
struct LinearAttentionOptions {
  LinearRule rule = LinearRule::gated_delta;
  std::optional<double> scale{};  ///< 1/√D when empty; finite
  /// eps ≥ 0: q and k are divided by √(Σ x² + eps), their L2 norm over D, before anything else. Empty: they are taken
  /// as they are. A row of zeros stays zero, and so do its gradients where eps is 0.
  std::optional<double> l2_norm{};
  /// How the call runs; the same bits for any number of threads. The kernels for CPUs compute it, whatever the backend.
  ExecutionContext context{};
};

/// What the operation reads. q, k and v are required and share one of f32, f64, bf16, f16. Any strides.
struct LinearAttentionInputs {
  ConstTensorView q{};  ///< (B,Hq,T,D), 1 ≤ D ≤ 256
  ConstTensorView k{};  ///< (B,Hk,T,D)
  ConstTensorView v{};  ///< (B,Hv,T,Dv), 1 ≤ Dv ≤ 256
  /// g (B,Hv,T,1), or (B,Hv,T,D) for a decay of each feature; dtype of q, or f32; a natural logarithm, −∞ to 0 in
  /// general. Only with the rules gated and gated_delta; absent means 0, no decay.
  ConstTensorView decay{};
  /// β (B,Hv,T,1), or (B,1,T,1) for all heads; dtype of q, or f32. Only with the rules delta and gated_delta; absent
  /// means 1.
  ConstTensorView beta{};
  ConstTensorView state{};       ///< S_0 (N,Hv,D,Dv), f32 or f64; absent means 0
  ConstTensorView cu_seqlens{};  ///< (1,1,1,N+1), i32 or i64: a packed batch. 0 first, never decreasing, T last
};

/// What the forward pass writes (overwrites). y is required.
struct LinearAttentionOutputs {
  TensorView y{};  ///< (B,Ho,T,Dv), dtype of q
  TensorView
      state{};  ///< S_T (N,Hv,D,Dv), f32 or f64; may be the very view that the inputs have, to update it in place
};

/// The recurrence, for T ≥ 0 tokens: a prompt, a part of one that goes on from a state, or a single new token. States
/// and sums are f32 or better, whatever the storage. Memory O(T·D) at most, none of it for each pair of tokens.
/// Deterministic: the same bits for any number of threads. Outputs must not overlap inputs or each other, but for the
/// state. Throws headgate::Error, before anything is written, on arguments that do not fit; std::bad_alloc when memory
/// runs out.
HEADGATE_API void linear_attention_forward(const LinearAttentionOutputs& outputs, const LinearAttentionInputs& inputs,
                                           const LinearAttentionOptions& options = {});

/// Incoming gradients. dy is required.
struct LinearAttentionIncoming {
  ConstTensorView dy{};      ///< (B,Ho,T,Dv), dtype of q
  ConstTensorView dstate{};  ///< of S_T (N,Hv,D,Dv), f32 or f64; absent means zero
};

/// Gradients to write; each may be absent. All are overwritten, never added to. They have the shape and dtype of what
/// they are gradients of, and are summed over the heads that share it.
struct LinearAttentionGradients {
  TensorView dq{};      ///< (B,Hq,T,D)
  TensorView dk{};      ///< (B,Hk,T,D)
  TensorView dv{};      ///< (B,Hv,T,Dv)
  TensorView ddecay{};  ///< (B,Hv,T,1|D)
  TensorView dbeta{};   ///< (B,Hv|1,T,1)
  TensorView dstate{};  ///< of S_0 (N,Hv,D,Dv)
};

/// Gradients of Σ dy∘y + Σ dstate∘S_T, from the inputs alone: the states are computed again. Accumulated in f32 or
/// better; memory O(T·D + T/64·D·Dv) for each head that is worked on; deterministic. Errors as in
/// linear_attention_forward.
HEADGATE_API void linear_attention_backward(const LinearAttentionGradients& gradients,
                                            const LinearAttentionInputs& inputs,
                                            const LinearAttentionIncoming& incoming,
                                            const LinearAttentionOptions& options = {});

}  // namespace headgate

#endif  // HEADGATE_LINEAR_ATTENTION_HPP_
