// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_LINEAR_ATTENTION_STATISTICS_HPP_
#define HEADGATE_LINEAR_ATTENTION_STATISTICS_HPP_

#include "headgate/export.h"
#include "headgate/linear_attention.hpp"
#include "headgate/tensor.hpp"

/// @file
/// What linear attention attends to. The recurrence of headgate/linear_attention.hpp is a weighted sum of values, with
/// weights that are exact and may be negative:
///
///     y_t = Σ_{j ≤ t} a_tj v_j + S_0ᵀ r_t
///
/// For one t, start from r = scale · q_t and go back over the tokens j = t, t − 1, …, 1:
///
///   rule                | a_tj          | then r becomes
///   ---|---|---
///   linear              | k_j·r         | r
///   gated               | k_j·r         | e^{g_j} r
///   delta, gated_delta  | β_j (k_j·r)   | e^{g_j} (r − a_tj k_j)
///
/// What is left of r at the end is r_t, with which the initial state is read. A decay of each feature multiplies r
/// feature by feature. Letters and heads are those of headgate/linear_attention.hpp.

namespace headgate {

/// What linear_attention_weights overwrites; each may be absent. f32 or f64.
struct LinearAttentionWeights {
  /// (B,Ho,R,T): a_tj of the chosen queries; 0 at later tokens, and at those of other sequences.
  TensorView weights{};
  TensorView state_query{};  ///< (B,Ho,R,D): r_t, which reads S_0
};

/// The weights of chosen queries, T·D operations for each. `queries`: (1,1,1,R), i32 or i64, 0 ≤ t < T, in any order,
/// may repeat; rows of q in a packed batch. Required.
///
/// `inputs`: as for linear_attention_forward; nothing is read of v, which says how many states there are, and of state.
/// Computed in f32, in f64 for f64. The weights of a query have the same bits whatever other queries are chosen, and
/// for any number of threads. Outputs must not overlap inputs or each other. Throws headgate::Error, before anything is
/// written, on arguments that do not fit; std::bad_alloc when memory runs out.
HEADGATE_API void linear_attention_weights(const LinearAttentionWeights& outputs, const LinearAttentionInputs& inputs,
                                           const ConstTensorView& queries, const LinearAttentionOptions& options = {});

/// What linear_attention_statistics overwrites; each may be absent, and what is absent is not computed. f32 or f64.
/// N: the sequences of a packed batch, else B.
///
/// cost                                          | outputs
/// ---|---
/// T·D operations for each head                  | first, weight_sum, mean_decay, mean_beta, half_life
/// T²·D operations for each head                 | first_share, reach, absolute_sum
/// a forward pass, and D·Dv·min(D,Dv) operations | effective_rank, state_norm
struct LinearAttentionStatistics {
  // Of each query: (B,Ho,T,1). Quotients by a sum of 0 are 0.
  TensorView first{};        ///< a_t1
  TensorView first_share{};  ///< |a_t1| / Σⱼ |a_tj|
  TensorView reach{};        ///< Σⱼ |a_tj| (t − j) / Σⱼ |a_tj|: how many tokens back the query looks on average
  TensorView absolute_sum{};  ///< Σⱼ |a_tj|
  TensorView weight_sum{};    ///< Σⱼ a_tj

  // Means of the figures above over all queries but query 0, which reads no other token: (N,Ho,1,1). 0 without one.
  TensorView mean_first{};
  TensorView mean_first_share{};
  TensorView mean_reach{};
  TensorView mean_absolute_sum{};
  TensorView mean_weight_sum{};

  // Of each state: (N,Hv,1,1). Means are over the tokens of a sequence, and over features where each has a decay.
  TensorView mean_decay{};  ///< mean of e^g
  TensorView mean_beta{};   ///< mean of β
  /// ln 2 / −(mean of g), in tokens: after so many the geometric mean of the decays has halved what a state holds. ∞
  /// where the mean of g is not negative. A mean of half-lives would be ∞ as soon as one feature never decays.
  TensorView half_life{};
  /// ‖S‖_F⁴ / ‖SᵀS‖_F² of the state S_T, which is (Σ σ²)² / Σ σ⁴ of its singular values: the participation ratio, from
  /// 1, where S is an outer product, to min(D,Dv), where all σ are equal. 0 where S is 0.
  TensorView effective_rank{};
  TensorView state_norm{};  ///< ‖S_T‖_F
};

/// Figures of the weights of all queries, without a buffer for each pair of tokens: O(T) memory beside S_T.
///
/// `inputs`: as for linear_attention_forward; v and state are read for effective_rank and state_norm alone. Computed in
/// f32, in f64 for f64; deterministic: the same bits for any number of threads. Overlap and errors as in
/// linear_attention_weights.
HEADGATE_API void linear_attention_statistics(const LinearAttentionStatistics& outputs,
                                              const LinearAttentionInputs& inputs,
                                              const LinearAttentionOptions& options = {});

}  // namespace headgate

#endif  // HEADGATE_LINEAR_ATTENTION_STATISTICS_HPP_
