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

// Computes the Gated DeltaNet layer of Qwen3-Next, Qwen3.5 and OLMo-Hybrid. One GEMM makes [q | k | v | z | b | a] from
// the pre-normed input h. Then follow a causal convolution with SiLU on q, k and v; the gated delta rule on L2-normed q
// and k, with g = −exp(a_log)·softplus(a + dt_bias) and β = beta_scale·σ(b); the norm of each head's output, times its
// gate of z; and W_o. Value head h reads key head h / (Hv/Hk).

namespace headgate::layers {

/// Weights (of const T) or their gradients (of T, all +=) that are not operands of products.
template <typename T>
struct DeltaNetVectors {
  View<T, 2> convolution;  ///< (channels,K), dense; the last tap meets the token itself
  View<T, 1> a_log;        ///< (Hv)
  View<T, 1> dt_bias;      ///< (Hv)
  View<T, 1> norm;         ///< (Dv), the same for all heads
};

/// Adds the matrices, whose elements may have another type M: bf16 with T = float.
template <typename T, typename M = T>
struct DeltaNetWeights : DeltaNetVectors<T> {
  MatrixOf<M> in;   ///< (width,C): rows of q, k, v, z, b, a
  MatrixOf<M> out;  ///< (C,Hv·Dv)
};

/// Computes the layer in the caller's memory, with activations of T. If T is bf16, decay, β, states, sums and vectors
/// of weights are f32.
template <typename T>
class DeltaNet {
 public:
  /// `context`: a context returned by resolved(). Throws Error as validate() does.
  DeltaNet(const DeltaNetShape& shape, const DeltaNetShared<T>& shared, const ExecutionContext& context);

  /// out(N,C) = or += the layer of h(N,C); elements O are T or Wide<T>. With a cache, the tokens follow those that it
  /// has seen, and are added to it once the delta rule has read them. A pass that has a cache or overrides heads cannot
  /// be followed by a backward pass. Factors of an override multiply the normed output of a value head in place of its
  /// gate.
  template <typename O, typename M>
  void forward(View<O, 2> out, ConstView<T, 2> h, const DeltaNetWeights<const Wide<T>, M>& weights,
               const DeltaNetState<T>& state, Update update, DeltaNetCache* cache = nullptr,
               const HeadOverride<T>* replaced = nullptr) const;

  /// dh(N,C) =; gradients +=. dout(N,C) is read; h, weights and state are those of the forward pass. Absent matrices of
  /// `gradients` are not computed.
  void backward(View<Wide<T>, 2> dh, const DeltaNetWeights<Wide<T>>& gradients, ConstView<T, 2> dout, ConstView<T, 2> h,
                const DeltaNetWeights<const Wide<T>, const T>& weights, const DeltaNetState<T>& state) const;

  /// Returns what the delta rule reads, as after a forward pass without a cache: q, k and v behind the convolution, g
  /// and β. linear_attention_statistics and linear_attention_weights take the same.
  LinearAttentionInputs rule_inputs(const DeltaNetState<T>& state) const;
  /// Returns how the rule runs: gated_delta, q and k divided by their L2 norms, a scale of 1/√D.
  LinearAttentionOptions rule_options() const;

 private:
  void convolve(const DeltaNetVectors<const Wide<T>>& weights, const DeltaNetState<T>& state,
                const DeltaNetCache::Pass* pass) const;
  void attend(const DeltaNetState<T>& state, const DeltaNetCache::Pass* pass) const;
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
  /// Views (N,H,F) as the operations' (B,H,T,F).
  template <typename U>
  ViewOf<U> by_head(const View<U, 3>& tokens) const;
  template <typename U>
  ViewOf<U> by_head(const View<U, 2>& logits) const;

  DeltaNetShape shape_;
  DeltaNetShared<T> shared_;
  ExecutionContext context_;
};

}  // namespace headgate::layers
