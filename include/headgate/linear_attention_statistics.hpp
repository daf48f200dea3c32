// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_LINEAR_ATTENTION_STATISTICS_HPP_
#define HEADGATE_LINEAR_ATTENTION_STATISTICS_HPP_

#include "headgate/export.h"
#include "headgate/linear_attention.hpp"
#include "headgate/tensor.hpp"

/// @file
/// Computes the attention weights of linear attention. The output y_t of the recurrence in
/// headgate/linear_attention.hpp is a weighted sum of the values v_j. The weights a_tj are exact and may be negative:
///
///     y_t = Σ_{j ≤ t} a_tj v_j + S_0ᵀ r_t
///
/// To compute the weights of query t, start with r = scale · q_t and go back over the tokens j = t, t − 1, …, 1:
///
///   rule                | a_tj          | new r
///   ---|---|---
///   linear              | k_j·r         | r
///   gated               | k_j·r         | e^{g_j} r
///   delta, gated_delta  | β_j (k_j·r)   | e^{g_j} (r − a_tj k_j)
///
/// The final r is r_t, the query for the initial state. A decay per feature multiplies r feature by feature. The
/// meanings of letters and heads are those in headgate/linear_attention.hpp.

namespace headgate {

/// The outputs of linear_attention_weights, which overwrites them; f32 or f64. Each may be absent.
struct LinearAttentionWeights {
  /// (B,Ho,R,T): a_tj of the selected queries; 0 for later tokens and for tokens of other sequences
  TensorView weights{};
  TensorView state_query{};  ///< (B,Ho,R,D): r_t of each selected query, by which y_t reads S_0
};

/// Computes the weights of selected queries, in T·D operations for each query and head. `queries` is required:
/// (1,1,1,R), i32 or i64, 0 ≤ t < T, in any order. Queries may repeat. In a packed batch, t is a row of q.
///
/// `inputs` are those of linear_attention_forward. The elements of v and of state are not read; v determines the number
/// of states. Computes in f32, or in f64 for f64 inputs. The weights of a query are bitwise identical for any selection
/// of other queries and any number of threads.
///
/// Outputs must not overlap inputs or each other. Throws headgate::Error for invalid arguments, before anything is
/// written, and std::bad_alloc if memory runs out. Throws Cancelled if options.context cancels the call; the outputs
/// are then unspecified.
HEADGATE_API void linear_attention_weights(const LinearAttentionWeights& outputs, const LinearAttentionInputs& inputs,
                                           const ConstTensorView& queries, const LinearAttentionOptions& options = {});

/// The outputs of linear_attention_statistics, which overwrites them; f32 or f64. Absent outputs are not computed. N is
/// the number of sequences in a packed batch, otherwise B.
///
/// The cost depends on the requested outputs:
///
///   - first, weight_sum, mean_decay, mean_beta, half_life: T·D operations for each head.
///   - first_share, reach, absolute_sum: T²·D operations for each head.
///   - effective_rank, state_norm: a forward pass, and D·Dv·min(D,Dv) operations for each head.
struct LinearAttentionStatistics {
  // Statistics of each query, (B,Ho,T,1). A quotient with denominator 0 is 0.
  TensorView first{};        ///< a_t1
  TensorView first_share{};  ///< |a_t1| / Σⱼ |a_tj|: the share of the first token
  TensorView reach{};  ///< Σⱼ |a_tj| (t − j) / Σⱼ |a_tj|: the mean distance to the tokens, weighted by |a_tj|
  TensorView absolute_sum{};  ///< Σⱼ |a_tj|
  TensorView weight_sum{};    ///< Σⱼ a_tj

  // Means of the statistics above over the queries of a sequence, (N,Ho,1,1). Query 0 is excluded, because it reads
  // only its own token. The mean of no queries is 0.
  TensorView mean_first{};
  TensorView mean_first_share{};
  TensorView mean_reach{};
  TensorView mean_absolute_sum{};
  TensorView mean_weight_sum{};

  // Statistics of each state, (N,Hv,1,1). Means are over the tokens of a sequence. If each feature has a decay,
  // mean_decay and half_life are means over the features too.
  TensorView mean_decay{};  ///< mean of the decay e^g
  TensorView mean_beta{};   ///< mean of the step size β of the delta rule
  /// Half-life of the state in tokens, ln 2 / −(mean of g). A state that decays by the mean of g at each token halves
  /// in this time. ∞ if the mean of g is not negative. A mean of half-lives would be less useful: it is ∞ if a single
  /// feature never decays.
  TensorView half_life{};
  /// Participation ratio of the singular values σ of S = S_T: ‖S‖_F⁴ / ‖SᵀS‖_F² = (Σ σ²)² / Σ σ⁴. The ratio is 1 if S_T
  /// is an outer product, min(D,Dv) if all σ are equal, and 0 if S_T is 0.
  TensorView effective_rank{};
  TensorView state_norm{};  ///< ‖S_T‖_F
};

/// Computes statistics of the weights of all queries in O(T) memory, plus the memory of S_T.
///
/// `inputs` are those of linear_attention_forward. v and state are read only for effective_rank and state_norm.
/// Computes in f32, or in f64 for f64 inputs. Results are bitwise identical for any number of threads. Outputs must not
/// overlap inputs or each other. Throws like linear_attention_weights.
HEADGATE_API void linear_attention_statistics(const LinearAttentionStatistics& outputs,
                                              const LinearAttentionInputs& inputs,
                                              const LinearAttentionOptions& options = {});

}  // namespace headgate

#endif  // HEADGATE_LINEAR_ATTENTION_STATISTICS_HPP_
