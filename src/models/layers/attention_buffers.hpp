// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "library/core/words.hpp"
#include "library/core/workspace.hpp"
#include "models/layers/activation_rounding.hpp"
#include "models/layers/gate_variant.hpp"
#include "models/layers/rmsnorm.hpp"
#include "models/layers/rope.hpp"

// Defines the sizes and the buffers of a gated attention layer. Some buffers belong to one layer, which saves them for
// the backward pass. Others are shared by all layers of a model.

namespace headgate::layers {

/// Selects the RMSNorm of q and k, which is applied before RoPE.
/// - per_head: normalizes each head by itself. The heads of q share a weight of head_dim numbers, and so do the heads
///   of k.
/// - all_heads: normalizes the features of all heads of q together, and those of all heads of k.
enum class QkNorm : std::int32_t { none, per_head, all_heads };

/// Selects the bias of the q, k and v projections. learned: each projection adds a learned vector that starts at zero.
enum class QkvBias : std::int32_t { none, learned };

struct GatedAttentionShape {
  std::int64_t B = 0, T = 0, C = 0;     ///< B sequences of T tokens with C channels
  std::int64_t Hq = 0, Hkv = 0, D = 0;  ///< Hq query heads and Hkv key/value heads of D features
  std::int64_t rotary_dim = 0;          ///< number of features of a head that RoPE rotates, even; 0 means no RoPE
  double rope_base = 10000.0;
  double scale = 0.0;  ///< factor of the scores q·k; 0 means 1/√D
  QkNorm qk_norm = QkNorm::none;
  NormOptions norm;  ///< options for the norms of q, k and the attention output
  GateVariant gate;
  RopeScaling rope_scaling;
  QkvBias qkv_bias = QkvBias::none;
  std::int64_t window = 0;  ///< number of keys that a query attends to, including the query's own; 0: no limit
  ActivationRounding rounding = ActivationRounding::none;  ///< rounding of W_o's input

  std::int64_t N() const { return B * T; }
};

/// The shape (heads, features) of a token's gate logits; (0, 0) without a gate.
struct GateLogits {
  std::int64_t heads = 0;
  std::int64_t features = 0;
  std::int64_t count() const { return heads * features; }
};
GateLogits gate_logits(const GateVariant& gate, std::int64_t C, std::int64_t Hq, std::int64_t Hkv, std::int64_t D);
GateLogits gate_logits(const GatedAttentionShape& shape);

ProjectionColumns projection_columns(const GatedAttentionShape& shape);

/// Views the activations that the forward pass saves for the backward pass. A buffer that the gate variant does not
/// need is absent.
template <typename T>
struct AttentionState {
  AttentionState(Workspace& ws, const GatedAttentionShape& shape);

  View<T, 2> projection;  ///< (N,width) [q | z | k | v]; the next four members view its columns
  View<T, 2> logits;      ///< (N,heads·features) gate logits z
  View<T, 3> projected_q, projected_k, projected_v;  ///< (N,Hq,D), (N,Hkv,D), (N,Hkv,D) before gate and norm

  // Input and output of a gate on q, k or v. `ungated` is projected_q, projected_k or projected_v. `gated` has separate
  // memory.
  View<T, 3> ungated, gated;

  // Inputs and results of QK-norm: q and k are gated_q and gated_k after the norm. Without QK-norm, q and gated_q are
  // the same memory, and so are k and gated_k. RoPE rotates q and k in place.
  View<T, 3> gated_q, q;    ///< (N,Hq,D)
  View<T, 3> gated_k, k;    ///< (N,Hkv,D)
  View<T, 3> v;             ///< (N,Hkv,D)
  View<Wide<T>, 2> q_rstd;  ///< 1/rms of q: (N,Hq), or (N,1) if one norm spans all heads
  View<Wide<T>, 2> k_rstd;  ///< 1/rms of k: (N,Hkv), or (N,1) if one norm spans all heads

  View<T, 2> shared_gate;      ///< (N,D) gate shared by all heads: mean over heads of g(z)
  View<T, 3> attn;             ///< (N,Hq,D) attention output before the gate; present if the backward pass needs it
  View<T, 3> y;                ///< (N,Hq,D) attention output, after a gate on it if there is one
  View<Wide<T>, 3> lse;        ///< (B,Hq,T)
  View<T, 3> controlled;       ///< (N,Hq,D) input of W_o: y after OutputControl; without a control, y itself
  View<Wide<T>, 2> head_rstd;  ///< (N,Hq)
  View<T, 2> ungated_out;      ///< (N,C) output of W_o before a gate on it (g5); absent without such a gate
};

/// Views the buffers that all layers of a model share.
template <typename T>
struct AttentionShared {
  /// Allocates the buffers. Allocates those of the backward pass if `training` is true.
  AttentionShared(Workspace& ws, const GatedAttentionShape& shape, bool training);

  View<Wide<T>, 2> cos, sin;    ///< (T,rotary_dim/2)
  View<Wide<T>, 1> zero_sinks;  ///< (Hq)
  View<T, 2> gate_parameter;    ///< (heads,features) learned gate logits rounded to bf16; absent if T is not bf16

  // Buffers of the backward pass.
  View<T, 2> dprojection;   ///< (N,width) gradient of `projection`: dq, dk, dv, and dlogits if z is projected
  View<T, 2> dlogits;       ///< (N,heads·features)
  View<T, 3> dq, dk, dv;    ///< gradients of q, k and v, later overwritten by the gradients of the projections
  View<T, 3> dgated;        ///< gradient of `gated`: the same memory as one of dq, dk and dv
  View<T, 3> dy;            ///< (N,Hq,D) gradient of `controlled`, later overwritten by that of y
  View<T, 2> dungated_out;  ///< (N,C)
  View<Wide<T>, 1> dsinks;  ///< (Hq)
};

}  // namespace headgate::layers

namespace headgate {

template <>
struct Words<layers::QkNorm> {
  static constexpr std::array<Word<layers::QkNorm>, 3> kAll{{{layers::QkNorm::per_head, "per_head"},
                                                             {layers::QkNorm::none, "none"},
                                                             {layers::QkNorm::all_heads, "all_heads"}}};
};

template <>
struct Words<layers::QkvBias> {
  static constexpr std::array<Word<layers::QkvBias>, 2> kAll{
      {{layers::QkvBias::none, "none"}, {layers::QkvBias::learned, "learned"}}};
};

}  // namespace headgate
