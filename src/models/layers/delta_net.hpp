// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/gated_norm.hpp"
#include "headgate/linear_attention.hpp"
#include "headgate/short_convolution.hpp"
#include "models/layers/arguments.hpp"
#include "models/layers/delta_net_buffers.hpp"
#include "models/layers/delta_net_cache.hpp"
#include "models/layers/delta_net_gates.hpp"
#include "models/layers/head_override.hpp"
#include "models/layers/stored_matrix.hpp"

// Computes the Gated DeltaNet layer of Qwen3-Next, Qwen3.5 and OLMo-Hybrid. The steps of a layer are:
//   - one GEMM that computes [q | k | v | z | b | a] from the pre-normed input h
//   - a causal convolution with SiLU of q, k and v
//   - the gated delta rule on L2-normed q and k, with g = −exp(a_log)·softplus(a + dt_bias) and β = beta_scale·σ(b)
//   - the norm of each head's output, multiplied by the output gate of z
//   - the output projection W_o
// Value head h reads key head h / (Hv/Hk).

namespace headgate::layers {

/// Weights other than the projection matrices, with elements const T, or their accumulated gradients, with elements T.
template <typename T>
struct DeltaNetVectors {
  View<T, 2> convolution;  ///< (channels,K), dense; the last tap multiplies the current token
  View<T, 1> a_log;        ///< (Hv)
  View<T, 1> dt_bias;      ///< (Hv)
  View<T, 1> norm;         ///< (Dv) weight of the output norm, the same for all heads
};

/// All weights of the layer, or their gradients. The element type M of matrices may differ from T, for example bf16
/// with T = float.
template <typename T, typename M = T>
struct DeltaNetWeights : DeltaNetVectors<T> {
  MatrixOf<M> in;   ///< (width,C) rows that project the input h to [q | k | v | z | b | a]
  MatrixOf<M> out;  ///< (C,Hv·Dv)
};

/// Computes the layer in buffers of the caller, with activations of type T. If T is bf16, decay, β, states, sums and
/// weight vectors are f32.
template <typename T>
class DeltaNet {
 public:
  /// `context` must come from resolved(). Throws Error under the conditions of validate().
  DeltaNet(const DeltaNetShape& shape, const DeltaNetShared<T>& shared, const ExecutionContext& context);

  /// Computes the layer for h(N,C): out(N,C) = layer(h), or out += layer(h), as `update` selects. Elements O of `out`
  /// are T or Wide<T>.
  /// - With `cache`, continues the cached sequences and updates the cache.
  /// - With `replaced`, overwrites the outputs of some value heads.
  ///
  /// After a pass with either, the backward pass is not possible.
  template <typename O, typename M>
  void forward(View<O, 2> out, ConstView<T, 2> h, const DeltaNetWeights<const Wide<T>, M>& weights,
               const DeltaNetState<T>& state, Update update, DeltaNetCache* cache = nullptr,
               const HeadOverride<T>* replaced = nullptr) const;

  /// Computes dh(N,C) from dout(N,C) and adds the gradients of the weights. h, weights and state must be the same as in
  /// the forward pass. A matrix that is absent in `gradients` gets no gradient.
  void backward(View<Wide<T>, 2> dh, const DeltaNetWeights<Wide<T>>& gradients, ConstView<T, 2> dout, ConstView<T, 2> h,
                const DeltaNetWeights<const Wide<T>, const T>& weights, const DeltaNetState<T>& state) const;

  /// Returns the inputs of the delta rule after a forward pass without a cache: g and β, and q, k and v after the
  /// convolution. linear_attention_statistics and linear_attention_weights take the same inputs.
  LinearAttentionInputs rule_inputs(const DeltaNetState<T>& state) const;
  /// Returns the options of the delta rule: LinearRule::gated_delta, L2-normed q and k, scale 1/√D.
  LinearAttentionOptions rule_options() const;

 private:
  /// A part of a pass: tokens [first, first + count) of each sequence, which are computed together. A pass consists of
  /// one or more parts.
  struct Part {
    std::int64_t first = 0, count = 0;
  };

  void convolve(const DeltaNetVectors<const Wide<T>>& weights, const DeltaNetState<T>& state, const Part& part,
                const DeltaNetCache::Pass* pass) const;
  void attend(const DeltaNetState<T>& state, const Part& part, const DeltaNetCache::Pass* pass) const;
  void gate_output(const DeltaNetVectors<const Wide<T>>& weights, const DeltaNetState<T>& state,
                   const HeadOverride<T>* replaced) const;
  void convolve_backward(const DeltaNetWeights<Wide<T>>& gradients,
                         const DeltaNetWeights<const Wide<T>, const T>& weights, const DeltaNetState<T>& state) const;
  void attend_backward(const DeltaNetWeights<Wide<T>>& gradients,
                       const DeltaNetWeights<const Wide<T>, const T>& weights, const DeltaNetState<T>& state) const;
  void gate_output_backward(const DeltaNetWeights<Wide<T>>& gradients,
                            const DeltaNetWeights<const Wide<T>, const T>& weights,
                            const DeltaNetState<T>& state) const;

  ShortConvolutionInputs convolution_inputs(const DeltaNetVectors<const Wide<T>>& weights,
                                            const DeltaNetState<T>& state) const;
  GatedNormInputs norm_inputs(const DeltaNetVectors<const Wide<T>>& weights, const DeltaNetState<T>& state) const;
  GatedNormOptions norm_options() const;
  DeltaGates<T> gates(const DeltaNetVectors<const Wide<T>>& weights, const DeltaNetState<T>& state) const;
  /// Views activations (N,H,F) as tensors (B,H,T,F) of the library's operations.
  template <typename U>
  ViewOf<U> by_head(const View<U, 3>& tokens) const;
  template <typename U>
  ViewOf<U> by_head(const View<U, 2>& logits) const;

  DeltaNetShape shape_;
  DeltaNetShared<T> shared_;
  ExecutionContext context_;
};

}  // namespace headgate::layers
