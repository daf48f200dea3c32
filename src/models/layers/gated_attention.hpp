// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "headgate/attention.hpp"
#include "models/layers/arguments.hpp"
#include "models/layers/attention_buffers.hpp"
#include "models/layers/attention_cache.hpp"
#include "models/layers/attention_skip.hpp"
#include "models/layers/gate_apply.hpp"
#include "models/layers/head_override.hpp"

// The gated attention layer: one GEMM makes [q | z | k | v] from the pre-normed input h; a gate on a projection;
// QK-norm; RoPE; attention with its gate or control; W_o; a gate on its output. At most one of the gates: kGateSites.

namespace headgate::layers {

/// Weights (of const T) or their gradients (of T, all +=) that no product reads. What the variant lacks stays absent.
template <typename T>
struct AttentionVectors {
  View<T, 1> gate_bias;       ///< (heads·features of the gate)
  View<T, 2> gate_parameter;  ///< (heads,features)
  View<T, 1> q_norm;          ///< (D)
  View<T, 1> k_norm;          ///< (D)
  View<T, 1> head_norm;       ///< (D)
  View<T, 1> sinks;           ///< (Hq)
  View<T, 1> q_bias;          ///< (Hq·D)
  View<T, 1> k_bias;          ///< (Hkv·D)
  View<T, 1> v_bias;          ///< (Hkv·D)
};

/// The same with the matrices, whose elements may be of another type M: bf16 with T = float.
template <typename T, typename M = T>
struct AttentionWeights : AttentionVectors<T> {
  View<M, 2> in;   ///< (width,C): rows of q_proj, gate_proj, k_proj, v_proj
  View<M, 2> out;  ///< (C,Hq·D)
};

/// The layer's arithmetic. Its memory is the caller's.
template <typename T>
class GatedAttention {
 public:
  /// Fills the constants in `shared`: RoPE's tables for positions 0 … T−1, and zero sinks. `context`: one of
  /// resolved().
  GatedAttention(const GatedAttentionShape& shape, const AttentionShared<T>& shared, const ExecutionContext& context);

  /// Makes the T tokens those at positions first … first + T−1.
  void set_first_position(std::int64_t first);

  /// out(N,C) = or += the layer of h(N,C). With a cache, keys and values are appended to it, and attention is over all
  /// that it holds. After a pass that skips rows, has a cache or overrides heads there is no backward pass.
  template <typename M>
  void forward(View<T, 2> out, ConstView<T, 2> h, const AttentionWeights<const T, M>& weights,
               const AttentionState<T>& state, Update update, AttentionSkip* skip = nullptr,
               AttentionCache* cache = nullptr, const HeadOverride<T>* replaced = nullptr) const;

  /// dh(N,C) =; gradients +=. dout(N,C) is read; h, weights and state are those of the forward pass.
  void backward(View<T, 2> dh, const AttentionWeights<T>& gradients, ConstView<T, 2> dout, ConstView<T, 2> h,
                const AttentionWeights<const T>& weights, const AttentionState<T>& state) const;

  /// z (N,heads,features), whose tokens lie at stride 0 where it does not depend on the input; absent without a gate.
  View<const T, 3> logits(const AttentionVectors<const T>& weights, const AttentionState<T>& state) const;

  /// The scores (Hq) beside those of the keys; absent without.
  View<const T, 1> sinks(const AttentionVectors<const T>& weights) const;

  /// Of the scores q·k.
  double scale() const;

 private:
  /// visit(vector of `weights`, columns of `projection` that it is added to) for each bias of q, k and v.
  template <typename U, typename V, class Visit>
  void each_bias(const AttentionVectors<U>& weights, const View<V, 2>& projection, const Visit& visit) const;
  GateRule rule() const;
  View<const T, 3> effective_logits(const AttentionVectors<const T>& weights, const AttentionState<T>& state) const;
  AttentionOptions options() const;
  AttentionInputs inputs(const AttentionVectors<const T>& weights, const AttentionState<T>& state) const;
  template <typename U>
  ViewOf<U> by_head(const View<U, 3>& tokens) const;

  void attend(const AttentionVectors<const T>& weights, const AttentionState<T>& state, AttentionSkip* skip,
              AttentionCache* cache, const HeadOverride<T>* replaced) const;
  void control_backward(const AttentionWeights<T>& gradients, const AttentionWeights<const T>& weights,
                        const AttentionState<T>& state) const;
  void attend_backward(const AttentionWeights<T>& gradients, const AttentionWeights<const T>& weights,
                       const AttentionState<T>& state) const;

  GatedAttentionShape shape_;
  AttentionShared<T> shared_;
  ExecutionContext context_;
  std::vector<double> frequencies_;  // of RoPE
};

}  // namespace headgate::layers
