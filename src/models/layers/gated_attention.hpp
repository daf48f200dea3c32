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
#include "models/layers/stored_matrix.hpp"

// Computes the gated attention layer. One GEMM makes q, z, k and v, side by side, from the pre-normed input h. Then
// follow a gate on a projection, QK-norm, RoPE, attention with its gate or control, W_o, and a gate on the output. At
// most one of the gates is present: kGateSites.

namespace headgate::layers {

/// Weights (of const T) or their gradients (of T, all +=) that are not operands of products. Those that the variant
/// lacks are absent.
template <typename T>
struct AttentionVectors {
  View<T, 1> gate_bias;       ///< (heads·features of the gate)
  View<T, 2> gate_parameter;  ///< (heads,features)
  View<T, 1> q_norm;          ///< (D), or (Hq·D) if one norm spans all heads
  View<T, 1> k_norm;          ///< (D), or (Hkv·D)
  View<T, 1> head_norm;       ///< (D)
  View<T, 1> sinks;           ///< (Hq)
  View<T, 1> q_bias;          ///< (Hq·D)
  View<T, 1> k_bias;          ///< (Hkv·D)
  View<T, 1> v_bias;          ///< (Hkv·D)
  View<T, 1> out_bias;        ///< (C), added to W_o's product
};

/// Adds the matrices, whose elements may have another type M: bf16 or StoredBlocks with T = float.
template <typename T, typename M = T>
struct AttentionWeights : AttentionVectors<T> {
  MatrixOf<M> in;   ///< (width,C): rows of q_proj, gate_proj, k_proj, v_proj
  MatrixOf<M> out;  ///< (C,Hq·D)
};

/// Computes the layer in the caller's memory, with activations of T. If T is bf16, products and attention multiply
/// bf16, sums and vectors of weights are f32.
template <typename T>
class GatedAttention {
 public:
  /// Fills the constants in `shared`: RoPE's tables for positions 0 … T−1, and zero sinks. `context`: a context
  /// returned by resolved().
  GatedAttention(const GatedAttentionShape& shape, const AttentionShared<T>& shared, const ExecutionContext& context);

  /// Sets the positions of the T tokens to first … first + T−1.
  void set_first_position(std::int64_t first);

  /// out(N,C) = or += the layer of h(N,C); elements O are T or Wide<T>. With a cache, appends keys and values to it and
  /// attends to all that it holds. A pass that skips rows, has a cache or overrides heads cannot be followed by a
  /// backward pass.
  template <typename O, typename M>
  void forward(View<O, 2> out, ConstView<T, 2> h, const AttentionWeights<const Wide<T>, M>& weights,
               const AttentionState<T>& state, Update update, AttentionSkip* skip = nullptr,
               AttentionCache* cache = nullptr, const HeadOverride<T>* replaced = nullptr) const;

  /// dh(N,C) =; gradients +=. dout(N,C) is read; h, weights and state are those of the forward pass. Absent matrices of
  /// `gradients` are not computed, and gradients.in may have the rows of the gate alone.
  void backward(View<Wide<T>, 2> dh, const AttentionWeights<Wide<T>>& gradients, ConstView<T, 2> dout,
                ConstView<T, 2> h, const AttentionWeights<const Wide<T>, const T>& weights,
                const AttentionState<T>& state) const;

  /// Returns z (N,heads,features), with stride 0 over tokens if it does not depend on the input; absent without a gate.
  View<const T, 3> logits(const AttentionVectors<const Wide<T>>& weights, const AttentionState<T>& state) const;

  /// Returns the sink logits (Hq); absent without sinks.
  View<const Wide<T>, 1> sinks(const AttentionVectors<const Wide<T>>& weights) const;

  /// Returns the scale of the scores q·k.
  double scale() const;

 private:
  /// Calls visit(vector of `weights`, columns of `projection` that it is added to) for each bias of q, k and v.
  template <typename U, typename V, class Visit>
  void each_bias(const AttentionVectors<U>& weights, const View<V, 2>& projection, const Visit& visit) const;
  GateRule rule() const;
  View<const T, 3> effective_logits(const AttentionVectors<const Wide<T>>& weights,
                                    const AttentionState<T>& state) const;
  AttentionOptions options() const;
  AttentionInputs inputs(const AttentionVectors<const Wide<T>>& weights, const AttentionState<T>& state) const;
  template <typename U>
  ViewOf<U> by_head(const View<U, 3>& tokens) const;
  /// Views (N,H,D) as what one norm of q or k spans: as it is, or as (N,1,H·D).
  template <typename U>
  View<U, 3> normed_together(const View<U, 3>& heads) const;

  void attend(const AttentionVectors<const Wide<T>>& weights, const AttentionState<T>& state, AttentionSkip* skip,
              AttentionCache* cache, const HeadOverride<T>* replaced) const;
  void control_backward(const AttentionWeights<Wide<T>>& gradients,
                        const AttentionWeights<const Wide<T>, const T>& weights, const AttentionState<T>& state) const;
  void attend_backward(const AttentionWeights<Wide<T>>& gradients,
                       const AttentionWeights<const Wide<T>, const T>& weights, const AttentionState<T>& state) const;

  GatedAttentionShape shape_;
  AttentionShared<T> shared_;
  ExecutionContext context_;
  std::vector<double> frequencies_;  // RoPE's, in radians a token
};

}  // namespace headgate::layers
