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

// Computes the gated attention layer. One GEMM computes [q | z | k | v] from the pre-normed input h. The next steps
// are:
// - a gate on q, k or v
// - QK-norm and RoPE
// - attention, with a gate or a control on its output
// - W_o
// - a gate on the output of W_o
// At most one of these gates is present (see kGateSites).

namespace headgate::layers {

/// Weights other than the projection matrices, with elements const T, or their accumulated gradients, with elements T.
/// Members that the gate variant does not use are absent.
template <typename T>
struct AttentionVectors {
  View<T, 1> gate_bias;       ///< (heads·features) bias of the gate logits
  View<T, 2> gate_parameter;  ///< (heads,features)
  View<T, 1> q_norm;          ///< (D) weight of q's norm, or (Hq·D) if one norm spans all heads
  View<T, 1> k_norm;          ///< (D) weight of k's norm, or (Hkv·D) if one norm spans all heads
  View<T, 1> head_norm;       ///< (D)
  View<T, 1> sinks;           ///< (Hq)
  View<T, 1> q_bias;          ///< (Hq·D)
  View<T, 1> k_bias;          ///< (Hkv·D)
  View<T, 1> v_bias;          ///< (Hkv·D)
  View<T, 1> out_bias;        ///< (C) bias of W_o
};

/// All weights of the layer, or their gradients. If T is float, the element type M of matrices may also be bf16 or
/// StoredBlocks.
template <typename T, typename M = T>
struct AttentionWeights : AttentionVectors<T> {
  MatrixOf<M> in;   ///< (width,C) rows of q_proj, gate_proj, k_proj and v_proj, in this order
  MatrixOf<M> out;  ///< (C,Hq·D)
};

/// Computes the layer in buffers of the caller, with activations of type T. If T is bf16, matrix products and attention
/// multiply bf16 numbers, while sums and weight vectors are f32.
template <typename T>
class GatedAttention {
 public:
  /// Computes the constants in `shared`: zero sinks, and RoPE's tables for positions 0 to T − 1. `context` must come
  /// from resolved().
  GatedAttention(const GatedAttentionShape& shape, const AttentionShared<T>& shared, const ExecutionContext& context);

  /// Sets the positions of the T tokens to `first`, first + 1, …, first + T − 1.
  void set_first_position(std::int64_t first);

  /// Computes the layer for h(N,C): out(N,C) = layer(h), or out += layer(h), as `update` selects. Elements O of `out`
  /// are T or Wide<T>.
  /// - With `cache`, appends keys and values to the cache and attends to all cached keys.
  /// - With `skip`, skips query rows with closed gates.
  /// - With `replaced`, overwrites the outputs of some heads.
  ///
  /// After a pass with any of these, the backward pass is not possible.
  template <typename O, typename M>
  void forward(View<O, 2> out, ConstView<T, 2> h, const AttentionWeights<const Wide<T>, M>& weights,
               const AttentionState<T>& state, Update update, AttentionSkip* skip = nullptr,
               AttentionCache* cache = nullptr, const HeadOverride<T>* replaced = nullptr) const;

  /// Computes dh(N,C) from dout(N,C) and adds the gradients of the weights to `gradients`. h, weights and state must be
  /// the same as in the forward pass. A matrix that is absent in `gradients` gets no gradient. gradients.in may view
  /// only the rows of gate_proj.
  void backward(View<Wide<T>, 2> dh, const AttentionWeights<Wide<T>>& gradients, ConstView<T, 2> dout,
                ConstView<T, 2> h, const AttentionWeights<const Wide<T>, const T>& weights,
                const AttentionState<T>& state) const;

  /// Returns the gate logits z (N,heads,features); absent without a gate. If z is the same for all tokens, its token
  /// stride is 0.
  View<const T, 3> logits(const AttentionVectors<const Wide<T>>& weights, const AttentionState<T>& state) const;

  /// Returns the sink logits (Hq); absent without sinks.
  View<const Wide<T>, 1> sinks(const AttentionVectors<const Wide<T>>& weights) const;

  /// Returns the factor of the scores q·k.
  double scale() const;

 private:
  /// Calls visit(bias, columns) for each bias of q, k and v. `columns` are the columns of `projection` to which the
  /// bias is added.
  template <typename U, typename V, class Visit>
  void each_bias(const AttentionVectors<U>& weights, const View<V, 2>& projection, const Visit& visit) const;
  GateRule rule() const;
  View<const T, 3> effective_logits(const AttentionVectors<const Wide<T>>& weights,
                                    const AttentionState<T>& state) const;
  AttentionOptions options() const;
  AttentionInputs inputs(const AttentionVectors<const Wide<T>>& weights, const AttentionState<T>& state) const;
  template <typename U>
  ViewOf<U> by_head(const View<U, 3>& tokens) const;
  /// Views q or k (N,H,D) so that each row is one vector to normalize: a head (N,H,D), or all heads of a token
  /// (N,1,H·D).
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
  std::vector<double> frequencies_;  // frequencies of RoPE in radians per token
};

}  // namespace headgate::layers
