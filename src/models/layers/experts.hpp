// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "library/core/words.hpp"
#include "library/core/workspace.hpp"
#include "models/layers/activation_rounding.hpp"
#include "models/layers/arguments.hpp"
#include "models/layers/stored_matrix.hpp"

// Computes a mixture of experts, the MLP of Qwen3-Next, Qwen3.5-MoE, AFMoE, Step-3.5 and gpt-oss. A router sends each
// token to `active` of E experts. A shared expert, if the model has one, processes all tokens. Each expert is a SwiGLU.
// Only the forward pass is implemented.

namespace headgate::layers {

/// Selects how a router chooses experts from a token's logits, and how it computes their weights.
/// - softmax: chooses the largest logits. A weight is the softmax over all E logits. A renormalised weight is the
///   softmax over the chosen logits.
/// - sigmoid: chooses the largest σ(logit) + bias. A weight is σ(logit). A renormalised weight is σ(logit) divided by
///   (the sum over the chosen + 1e-20).
///
/// Among equal scores, the router chooses the expert with the lowest index. Weights are computed in the layer's type T.
enum class ExpertRouter : std::int32_t { softmax, sigmoid };

/// Selects the activation of an expert, a function of its projections `gate` and `up`.
/// - swiglu: s ∘ u with s = min(silu(gate), limit); see swiglu_forward() and swiglu_clamped_forward().
/// - shifted_swiglu: g ∘ σ(1.702 · g) ∘ (u + 1) with g = min(gate, limit); see swiglu_shifted_forward().
///
/// Both use u = clamp(up, −limit, limit). If the limit is 0, s, g and u are not bounded.
enum class ExpertActivation : std::int32_t { swiglu, shifted_swiglu };

struct ExpertsShape {
  std::int64_t N = 0, C = 0;       ///< tokens, channels
  std::int64_t E = 0, active = 0;  ///< number of experts, number of experts per token
  std::int64_t I = 0;              ///< width of an expert
  std::int64_t S = 0;              ///< width of the shared expert; 0: none
  ExpertRouter router = ExpertRouter::softmax;
  bool renormalise = true;
  ExpertActivation activation =
      ExpertActivation::swiglu;  ///< activation of the routed experts; the shared expert always has swiglu
  double scale = 1.0;            ///< multiplies the weights of the routed experts
  double limit = 0.0;            ///< limit of the routed experts' activations; 0: no limit
  double shared_limit = 0.0;     ///< limit of the shared expert's activations; 0: no limit
  ActivationRounding rounding = ActivationRounding::none;  ///< how each expert rounds the inputs of `down`
};

/// Throws Error unless 1 ≤ active ≤ E and all sizes and limits are valid.
void validate(const ExpertsShape& shape);

/// Matrices of one SwiGLU expert: down · (silu(gate·x) ∘ up·x). `gate` and `up` may view rows of one tensor.
template <typename M>
struct ExpertMatrices {
  MatrixOf<M> gate, up;  ///< (I,C) for a routed expert, (S,C) for the shared expert
  MatrixOf<M> down;      ///< (C,I) for a routed expert, (C,S) for the shared expert
};

/// Weights of a layer of experts. The router and the vectors have elements of type T. The experts' matrices have
/// elements of type M, which may differ, for example bf16 with T = const float.
template <typename T, typename M = T>
struct ExpertsWeights {
  View<T, 2> router;       ///< (E,C)
  View<T, 1> router_bias;  ///< (E) bias of the sigmoid router's scores, used only to choose experts; absent: no bias
  View<T, 1> logit_bias;   ///< (E) bias of the router's logits; absent: no bias
  /// Returns the matrices of expert e. Called only for experts that the router chose, so that a mapped file is not read
  /// for the others.
  std::function<ExpertMatrices<M>(std::int64_t e)> expert;
  ExpertMatrices<M> shared;  ///< matrices of the shared expert; absent if S is 0
  View<T, 2> shared_gate;    ///< (1,C) σ(shared_gate·x) multiplies the shared expert's output; absent: no gate
  View<T, 1> gate_up_bias;   ///< (E·2I) biases of gate and up, expert by expert; absent: no bias
  View<T, 1> down_bias;      ///< (E·C) biases of down, expert by expert; absent: no bias
};

/// Buffers of a forward pass, which all layers can share. `chosen` and `weights` remain valid until the next pass.
template <typename T>
struct ExpertsState {
  /// Throws Error under the conditions of validate().
  ExpertsState(Workspace& ws, const ExpertsShape& shape);

  View<T, 2> logits;             ///< (N,E) logits of the router
  View<std::int32_t, 2> chosen;  ///< (N,active) chosen experts, best first
  View<T, 2> weights;            ///< (N,active) weights of the chosen experts

  // The (token, expert) pairs, grouped by expert in slots. Slots first[e] to first[e + 1] − 1 hold the tokens of expert
  // e, in ascending order, and their weights.
  View<std::int64_t, 1> first;        ///< (E+1)
  View<std::int32_t, 1> slot_tokens;  ///< (N·active)
  View<T, 1> slot_weights;            ///< (N·active)

  View<T, 2> rows;           ///< (N,C) inputs of one expert
  View<T, 2> gate_up;        ///< (N,2·max(I,S)) [gate | up] projections of one expert
  View<T, 2> activation;     ///< (N,max(I,S))
  View<T, 2> y;              ///< (N,C) outputs of one expert
  View<T, 2> shared_logits;  ///< (N,1) logits of the gate on the shared expert; absent if S is 0
};

/// Chooses the experts of each token from state.logits. Writes state.chosen, state.weights and the slots of `state`.
/// `bias` is router_bias of the sigmoid router.
template <typename T>
void route_tokens(const ExpertsState<T>& state, ConstView<T, 1> bias, const ExpertsShape& shape,
                  const ExecutionContext& context);

/// Computes y = Σ weight · expert(h) + shared expert(h) for h(N,C). Sets out(N,C) to y or adds y to out, as `update`
/// selects. Sums a token's experts in ascending order of index, then the shared expert. This order holds at any number
/// of threads. An expert processes all its tokens at once, so its matrices are read once.
template <typename T, typename M>
void experts_forward(View<T, 2> out, ConstView<T, 2> h, const ExpertsWeights<const T, M>& weights,
                     const ExpertsState<T>& state, const ExpertsShape& shape, Update update,
                     const ExecutionContext& context);

}  // namespace headgate::layers

namespace headgate {

template <>
struct Words<layers::ExpertRouter> {
  static constexpr std::array<Word<layers::ExpertRouter>, 2> kAll{
      {{layers::ExpertRouter::softmax, "softmax"}, {layers::ExpertRouter::sigmoid, "sigmoid"}}};
};

template <>
struct Words<layers::ExpertActivation> {
  static constexpr std::array<Word<layers::ExpertActivation>, 2> kAll{
      {{layers::ExpertActivation::swiglu, "swiglu"}, {layers::ExpertActivation::shifted_swiglu, "shifted_swiglu"}}};
};

}  // namespace headgate
