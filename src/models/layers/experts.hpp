// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "library/core/words.hpp"
#include "library/core/workspace.hpp"
#include "models/layers/arguments.hpp"
#include "models/layers/stored_matrix.hpp"

// Computes a mixture of experts, the MLP of Qwen3-Next, Qwen3.5-MoE, AFMoE, Step-3.5 and gpt-oss: a router sends each
// token to `active` of E experts, each a SwiGLU, and a shared expert reads all tokens. Forward only.

namespace headgate::layers {

/// How a token's logits choose experts and weigh them.
///
///   router   | chosen: the largest      | weight of a chosen one | renormalised
///   softmax  | logits                   | softmax over all E     | softmax over the chosen
///   sigmoid  | σ(logit) + bias          | σ(logit)               | σ(logit) / (Σ over the chosen + 1e-20)
///
/// Of equal ones the lowest index is chosen. Weights are computed in the layer's T.
enum class ExpertRouter : std::int32_t { softmax, sigmoid };

/// What an expert computes of gate·x and up·x, with b bounding the activations by a limit:
///
///   swiglu         | b(silu(gate)) ∘ b(up)                          | swiglu_forward, swiglu_clamped_forward
///   shifted_swiglu | b(gate) ∘ σ(1.702 · b(gate)) ∘ (b(up) + 1)     | swiglu_shifted_forward
enum class ExpertActivation : std::int32_t { swiglu, shifted_swiglu };

struct ExpertsShape {
  std::int64_t N = 0, C = 0;       ///< tokens, channels
  std::int64_t E = 0, active = 0;  ///< experts, and those of a token
  std::int64_t I = 0;              ///< width of an expert
  std::int64_t S = 0;              ///< width of the shared expert; 0: none
  ExpertRouter router = ExpertRouter::softmax;
  bool renormalise = true;
  ExpertActivation activation = ExpertActivation::swiglu;  ///< of chosen experts; the shared one has swiglu
  double scale = 1.0;                                      ///< multiplies the weights of the chosen experts
  double limit = 0.0;                                      ///< clamps the experts; 0: no clamp
  double shared_limit = 0.0;                               ///< clamps the shared expert
};

/// Throws Error unless 1 ≤ active ≤ E and the sizes and limits make sense.
void validate(const ExpertsShape& shape);

/// One SwiGLU: down · (silu(gate·x) ∘ up·x). Files that fuse gate and up hold them as ranges of rows.
template <typename M>
struct ExpertMatrices {
  MatrixOf<M> gate, up;  ///< (I,C); (S,C) of the shared expert
  MatrixOf<M> down;      ///< (C,I); (C,S)
};

/// Weights of const T, and matrices of const M: bf16 with T = float.
template <typename T, typename M = T>
struct ExpertsWeights {
  View<T, 2> router;       ///< (E,C)
  View<T, 1> router_bias;  ///< (E), of the sigmoid router alone; absent: 0
  View<T, 1> logit_bias;   ///< (E), added to the router's logits; absent: 0
  /// Returns expert e. Called only for experts that a token chose: the pages of others in a mapped file are not read.
  std::function<ExpertMatrices<M>(std::int64_t e)> expert;
  ExpertMatrices<M> shared;  ///< absent if S is 0
  View<T, 2> shared_gate;    ///< (1,C): σ(shared_gate·x) multiplies the shared expert; absent: 1
  View<T, 1> gate_up_bias;   ///< (E·2I): of each expert those of its gate, then those of up; absent: 0
  View<T, 1> down_bias;      ///< (E·C); absent: 0
};

/// Holds the buffers of one pass, which all layers may share. The choices stay there until the next pass.
template <typename T>
struct ExpertsState {
  /// Throws Error as validate() does.
  ExpertsState(Workspace& ws, const ExpertsShape& shape);

  View<T, 2> logits;             ///< (N,E) of the router
  View<std::int32_t, 2> chosen;  ///< (N,active), best first
  View<T, 2> weights;            ///< (N,active) of the chosen experts

  // The same, grouped by expert: slots first[e] … first[e + 1] − 1 belong to expert e, in the order of the tokens.
  View<std::int64_t, 1> first;        ///< (E+1)
  View<std::int32_t, 1> slot_tokens;  ///< (N·active)
  View<T, 1> slot_weights;            ///< (N·active)

  View<T, 2> rows;           ///< (N,C) inputs of one expert
  View<T, 2> gate_up;        ///< (N,2·max(I,S)) its projections
  View<T, 2> activation;     ///< (N,max(I,S))
  View<T, 2> y;              ///< (N,C) its outputs
  View<T, 2> shared_logits;  ///< (N,1) of the shared expert's gate; present if S > 0
};

/// Computes `chosen`, `weights` and their grouping from `logits`. `bias`: router_bias.
template <typename T>
void route_tokens(const ExpertsState<T>& state, ConstView<T, 1> bias, const ExpertsShape& shape,
                  const ExecutionContext& context);

/// out(N,C) = or += Σ weight · expert(h) + shared expert(h), h(N,C). The sum of a token takes its experts in the order
/// of their indices, whatever the number of threads, and the shared expert last. Each expert multiplies all its tokens
/// at once, so its matrices are read once.
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
