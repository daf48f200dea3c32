// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/words.hpp"
#include "headgate/attention.hpp"
#include "layers/buffer_plan.hpp"
#include "layers/gate_variant.hpp"
#include "layers/rmsnorm.hpp"
#include "layers/rope.hpp"
#include "layers/view.hpp"

// The gated attention layer: one GEMM makes [q | z | k | v] from the pre-normed input h; a gate on a projection;
// QK-norm; RoPE; attention with its gate or control; W_o; a gate on its output. At most one of the gates: kGateSites.

namespace headgate::layers {

/// per_head: RMSNorm on each head of q and of k, before RoPE; one weight of head_dim for all heads of q, one for k.
enum class QkNorm : std::int32_t { none, per_head };

struct GatedAttentionShape {
  std::int64_t B = 0, T = 0, C = 0;     ///< sequences, tokens of each, channels
  std::int64_t Hq = 0, Hkv = 0, D = 0;  ///< heads and their features
  std::int64_t rotary_dim = 0;          ///< features of a head that turn, even; 0: no RoPE
  double rope_base = 10000.0;
  QkNorm qk_norm = QkNorm::none;
  NormOptions norm;  ///< of q, k and the attention output
  GateVariant gate;

  std::int64_t N() const { return B * T; }
};

/// The shape (heads, features) of a token's gate logits; (0, 0) without a gate.
struct GateLogits {
  std::int64_t heads = 0;
  std::int64_t features = 0;
  std::int64_t count() const { return heads * features; }
};
GateLogits gate_logits(const GateVariant& gate, std::int64_t C, std::int64_t Hq, std::int64_t Hkv, std::int64_t D);

ProjectionColumns projection_columns(const GatedAttentionShape& shape);

/// Weights (Pointer = const T*) or their gradients (Pointer = T*, all +=). What the variant lacks stays null.
template <typename Pointer>
struct AttentionWeights {
  Pointer in = nullptr;              ///< (width,C): rows of q_proj, gate_proj, k_proj, v_proj
  Pointer gate_bias = nullptr;       ///< (heads·features of the gate)
  Pointer gate_parameter = nullptr;  ///< (heads,features)
  Pointer q_norm = nullptr;          ///< (D)
  Pointer k_norm = nullptr;          ///< (D)
  Pointer head_norm = nullptr;       ///< (D)
  Pointer sinks = nullptr;           ///< (Hq)
  Pointer out = nullptr;             ///< (C,Hq·D)
};

/// What the forward pass leaves for the backward pass; null where the variant does without.
template <typename T>
struct AttentionSavedState {
  T* projection = nullptr;   ///< (N,width); q and k turned in place where neither gate nor norm reads them
  T* gated = nullptr;        ///< (N,Hq·D) or (N,Hkv·D): the projection after its gate
  T* q = nullptr;            ///< (N,Hq·D) after QK-norm and RoPE
  T* k = nullptr;            ///< (N,Hkv·D) after QK-norm and RoPE
  T* q_rstd = nullptr;       ///< (N,Hq)
  T* k_rstd = nullptr;       ///< (N,Hkv)
  T* shared_gate = nullptr;  ///< (N,D) mean over heads of g(z)
  T* attn = nullptr;         ///< (N,Hq·D) before the gate, where the backward pass cannot do without
  T* y = nullptr;            ///< (N,Hq·D) the attention output, gated where the gate acts on it
  T* lse = nullptr;          ///< (B,Hq,T)
  T* controlled = nullptr;   ///< (N,Hq·D) y after its control
  T* head_rstd = nullptr;    ///< (N,Hq)
  T* ungated_out = nullptr;  ///< (N,C) W_o's output before its gate
};

/// The layer's arithmetic, without memory of its own but for what all layers share.
template <typename T>
class GatedAttention {
 public:
  explicit GatedAttention(const GatedAttentionShape& shape);

  /// Asks for what all layers share; `training` for the scratch of the backward pass too.
  void plan_shared(BufferPlan& plan, bool training);
  /// Asks for one layer's saved state.
  void plan_saved(BufferPlan& plan, AttentionSavedState<T>& saved) const;
  /// Fills the RoPE tables and the zero sinks; after the plan's memory is there.
  void prepare();

  /// out(N,C) = or += the layer of h(N,C).
  void forward(T* out, const T* h, const AttentionWeights<const T*>& weights, const AttentionSavedState<T>& saved,
               Store store);

  /// dh(N,C) =; gradients +=. dout(N,C) is read; h, weights and saved are those of the forward pass.
  void backward(T* dh, const AttentionWeights<T*>& gradients, const T* dout, const T* h,
                const AttentionWeights<const T*>& weights, const AttentionSavedState<T>& saved);

  /// q (N,Hq,D), k and v (N,Hkv,D) as the scores and the weighted sum see them.
  HeadView<const T> query(const AttentionSavedState<T>& saved) const;
  HeadView<const T> key(const AttentionSavedState<T>& saved) const;
  HeadView<const T> value(const AttentionSavedState<T>& saved) const;
  /// z (N,heads,features); token_stride 0 where it does not depend on the input; data null without a gate.
  HeadView<const T> logits(const AttentionWeights<const T*>& weights, const AttentionSavedState<T>& saved) const;

  const GatedAttentionShape& shape() const { return shape_; }
  double scale() const;

 private:
  bool gates_attention() const {
    return site_ != nullptr && site_->heads == GateHeads::query && site_->column == nullptr;
  }
  bool gates_projection() const { return site_ != nullptr && site_->column != nullptr; }
  bool gates_output() const { return site_ != nullptr && site_->heads == GateHeads::none; }
  bool shared() const { return has_gate(shape_.gate) && shape_.gate.grain == GateGrain::head_shared; }
  HeadShape q_heads() const { return {shape_.N(), shape_.Hq, shape_.D}; }
  HeadShape kv_heads() const { return {shape_.N(), shape_.Hkv, shape_.D}; }
  HeadView<T> columns(T* projection, std::int64_t column) const;
  HeadView<T> heads_of(T* data, std::int64_t heads) const;
  HeadView<T> projected(const AttentionSavedState<T>& saved, std::int64_t ProjectionColumns::*column,
                        std::int64_t heads) const;
  HeadShape gated_shape() const;
  const T* output_of(const AttentionSavedState<T>& saved) const;

  AttentionInputs inputs(const AttentionWeights<const T*>& weights, const AttentionSavedState<T>& saved) const;
  AttentionOptions options() const;
  HeadView<const T> effective_gate(const AttentionWeights<const T*>& weights,
                                   const AttentionSavedState<T>& saved) const;
  GateFn effective_fn() const { return shared() ? GateFn::identity : shape_.gate.fn; }
  bool keeps_attn() const;

  void gate(HeadView<T> v, HeadView<const T> u, const AttentionWeights<const T*>& weights,
            const AttentionSavedState<T>& saved, Store store) const;
  void norm_and_rotate(const AttentionWeights<const T*>& weights, const AttentionSavedState<T>& saved) const;
  void attend(const AttentionWeights<const T*>& weights, const AttentionSavedState<T>& saved) const;
  void control(const AttentionWeights<const T*>& weights, const AttentionSavedState<T>& saved) const;

  HeadView<T> logit_gradients() const;
  void gate_backward(HeadView<T> du, HeadView<const T> dv, HeadView<const T> u,
                     const AttentionWeights<const T*>& weights, const AttentionSavedState<T>& saved) const;
  void output_backward(const AttentionWeights<T*>& gradients, const T* dout, const AttentionWeights<const T*>& weights,
                       const AttentionSavedState<T>& saved);
  void control_backward(const AttentionWeights<T*>& gradients, const AttentionWeights<const T*>& weights,
                        const AttentionSavedState<T>& saved);
  void attend_backward(const AttentionWeights<T*>& gradients, const AttentionWeights<const T*>& weights,
                       const AttentionSavedState<T>& saved);
  void norm_and_rotate_backward(const AttentionWeights<T*>& gradients, const AttentionWeights<const T*>& weights,
                                const AttentionSavedState<T>& saved);
  void logits_backward(const AttentionWeights<T*>& gradients, const AttentionWeights<const T*>& weights,
                       const AttentionSavedState<T>& saved);

  GatedAttentionShape shape_;
  const GateSiteRow* site_ = nullptr;  // null without a gate
  GateLogits gate_;
  ProjectionColumns columns_;
  T* cos_ = nullptr;           // (T,rotary_dim/2)
  T* sin_ = nullptr;           // (T,rotary_dim/2)
  T* zero_sinks_ = nullptr;    // (Hq)
  T* dprojection_ = nullptr;   // (N,width)
  T* dy_ = nullptr;            // (N,Hq·D)
  T* dout_ungated_ = nullptr;  // (N,C) where the gate acts on W_o's output
  T* dlogits_ = nullptr;       // (N,heads·features) of an input-independent gate
  T* dsinks_ = nullptr;        // (Hq)
};

}  // namespace headgate::layers

namespace headgate {

template <>
struct Words<layers::QkNorm> {
  static constexpr std::array<Word<layers::QkNorm>, 2> kAll{
      {{layers::QkNorm::per_head, "per_head"}, {layers::QkNorm::none, "none"}}};
};

}  // namespace headgate
