// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "library/core/words.hpp"
#include "library/core/workspace.hpp"
#include "models/layers/gate_variant.hpp"
#include "models/layers/rmsnorm.hpp"
#include "models/layers/rope.hpp"

// Holds the sizes of a gated attention layer and its buffers: those that a layer keeps for its backward pass, and those
// that all layers of a model share.

namespace headgate::layers {

/// per_head: applies RMSNorm to each head of q and of k, before RoPE. All heads of q share a weight of head_dim, as do
/// all heads of k. all_heads: applies one RMSNorm to the features of all heads of q together, and one to those of k.
enum class QkNorm : std::int32_t { none, per_head, all_heads };

/// learned: adds a vector to each of q, k and v as they are projected. It starts at zero.
enum class QkvBias : std::int32_t { none, learned };

struct GatedAttentionShape {
  std::int64_t B = 0, T = 0, C = 0;     ///< sequences, tokens of each, channels
  std::int64_t Hq = 0, Hkv = 0, D = 0;  ///< heads and their features
  std::int64_t rotary_dim = 0;          ///< features of a head that RoPE rotates, even; 0: no RoPE
  double rope_base = 10000.0;
  double scale = 0.0;  ///< of the scores q·k; 0: 1/√D
  QkNorm qk_norm = QkNorm::none;
  NormOptions norm;  ///< of q, k and the attention output
  GateVariant gate;
  RopeScaling rope_scaling;
  QkvBias qkv_bias = QkvBias::none;
  std::int64_t window = 0;  ///< keys that a query sees, including its own, the last of them; 0: all before it

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

/// Holds what the forward pass saves for the backward pass. Buffers that the variant does not need are absent.
template <typename T>
struct AttentionState {
  AttentionState(Workspace& ws, const GatedAttentionShape& shape);

  View<T, 2> projection;                             ///< (N,width) [q | z | k | v]; the next four are columns of it
  View<T, 2> logits;                                 ///< (N,heads·features) z
  View<T, 3> projected_q, projected_k, projected_v;  ///< (N,Hq,D), (N,Hkv,D), (N,Hkv,D)

  // A gate on a projection reads one of the three and writes to its own buffer.
  View<T, 3> ungated, gated;

  // QK-norm reads gated_q and gated_k and writes to its own buffers, q and k. Without it, q is the same memory as
  // gated_q and k the same as gated_k. RoPE rotates q and k in place.
  View<T, 3> gated_q, q;    ///< (N,Hq,D)
  View<T, 3> gated_k, k;    ///< (N,Hkv,D)
  View<T, 3> v;             ///< (N,Hkv,D)
  View<Wide<T>, 2> q_rstd;  ///< (N,Hq), or (N,1) if one norm spans all heads
  View<Wide<T>, 2> k_rstd;  ///< (N,Hkv), or (N,1)

  View<T, 2> shared_gate;      ///< (N,D) mean over heads of g(z)
  View<T, 3> attn;             ///< (N,Hq,D) before the gate, where the backward pass needs it
  View<T, 3> y;                ///< (N,Hq,D) the attention output, gated if the gate acts on it
  View<Wide<T>, 3> lse;        ///< (B,Hq,T)
  View<T, 3> controlled;       ///< (N,Hq,D) y after its control, or y if there is none
  View<Wide<T>, 2> head_rstd;  ///< (N,Hq)
  View<T, 2> ungated_out;      ///< (N,C) W_o's output before its gate
};

/// Holds the buffers that all layers share.
template <typename T>
struct AttentionShared {
  /// `training`: allocates the buffers of the backward pass too.
  AttentionShared(Workspace& ws, const GatedAttentionShape& shape, bool training);

  View<Wide<T>, 2> cos, sin;    ///< (T,rotary_dim/2)
  View<Wide<T>, 1> zero_sinks;  ///< (Hq)
  View<T, 2> gate_parameter;    ///< (heads,features) of the layer that runs, rounded, if T is bf16

  // Buffers of the backward pass.
  View<T, 2> dprojection;   ///< (N,width); dq, dk, dv and, if z is projected, dlogits are columns of it
  View<T, 2> dlogits;       ///< (N,heads·features)
  View<T, 3> dq, dk, dv;    ///< gradients of q, k and v, turned in place into those of the projections
  View<T, 3> dgated;        ///< dq, dk or dv: the one whose projection is gated
  View<T, 3> dy;            ///< (N,Hq,D) gradient of `controlled`, turned in place into that of y
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
