// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_STATISTICS_HPP_
#define HEADGATE_STATISTICS_HPP_

#include <cstdint>

#include "headgate/attention.hpp"
#include "headgate/export.h"
#include "headgate/tensor.hpp"

/// @file
/// Statistics of the attention weights P = exp(s − lse) of headgate/attention.hpp, without a T×S buffer. Computing them
/// takes one product q kᵀ, and O(T) memory in addition to the outputs. P are the weights before dropout.

namespace headgate {

/// Largest number K of keys in topk_index and topk_weight.
inline constexpr std::int64_t kMaxTopKeys = 1024;

/// Selects keys and queries for the statistics that cover only some of them.
struct StatisticsSelection {
  /// The keys of key_weights: (1,1,1,J), i32 or i64, 0 ≤ j < S, in any order; keys may repeat. In a packed batch, j
  /// counts keys within each sequence. The weight of key j is 0 in sequences with at most j keys.
  ConstTensorView keys{};
  /// The queries of `rows`: (1,1,1,R), i32 or i64, 0 ≤ i < T, in any order; queries may repeat. In a packed batch, i is
  /// a row of q.
  ConstTensorView queries{};
  std::int64_t window = 0;  ///< W ≥ 0, the window of window_share and mean_window_share
};

/// The outputs of attention_statistics, which overwrites them. Absent outputs are not computed. All are f32 or f64,
/// except topk_index, which is i32 or i64.
///
/// In a packed batch of N sequences:
///
///   - Means have N in place of B.
///   - key_mass and `rows` have the S columns of all sequences; `rows` is 0 in columns of other sequences. If keys are
///     paged, columns are those of the query's own sequence, and key_mass has N in place of B.
///   - `first`, key_weights and topk_index number keys within the query's own sequence.
///
/// The cost depends on the requested outputs. Each of these outputs needs a part of a forward pass:
///
///   - first, first_gated, key_weights: the products of all queries with a few keys.
///   - window_share: the products with the keys in the window.
///   - row_max, topk_index, topk_weight: the whole product q kᵀ, about half of the work of a forward pass.
///   - entropy, key_mass: q kᵀ and the exponentials of the scores.
struct AttentionStatistics {
  TensorView row_max{};  ///< (B,Hq,T,1): maxⱼ P_ij; the largest score is log(row_max) + lse
  /// (B,Hq,T,1): entropy −Σⱼ P_ij log P_ij in nats. A sink adds −p log p with its weight p = exp(sink − lse).
  TensorView entropy{};
  TensorView first{};        ///< (B,Hq,T,1): P_i0, the weight of key 0
  TensorView first_gated{};  ///< (B,Hq,T,1): P_i0 times the mean of g(z_i) over features; only for GateOp::mul
  /// (B,Hq,T,1): Σ P_ij over |at_i − j| ≤ W. 1 − window_share is the weight of the sink and of keys outside the window.
  TensorView window_share{};
  TensorView key_weights{};  ///< (B,Hq,T,J): weights P_ij of the keys j in selection.keys

  /// Means of row_max, entropy, first, first_gated, window_share and key_weights over the queries of a sequence,
  /// (B,Hq,1,1). With a causal mask, means exclude the query at the first key, which sees only its own key. Means
  /// include rows without a visible key. The mean of no queries is 0.
  TensorView mean_row_max{};
  TensorView mean_entropy{};
  TensorView mean_first{};
  TensorView mean_first_gated{};
  TensorView mean_window_share{};
  TensorView mean_key_weights{};  ///< (B,Hq,1,J)

  TensorView key_mass{};  ///< (B,Hq,1,S): Σᵢ P_ij, the total weight of key j
  /// (B,Hq,T,K), 1 ≤ K ≤ kMaxTopKeys: the K keys with the largest scores, in descending order; ties in order of index.
  /// If fewer than K keys have a weight above 0, −1 fills the remaining entries.
  TensorView topk_index{};
  TensorView topk_weight{};  ///< (B,Hq,T,K): weights of the keys in topk_index; 0 where topk_index is −1
  TensorView rows{};         ///< (B,Hq,R,S): weights P_ij of the queries i in selection.queries; 0 for hidden keys
};

/// Computes statistics of the weights P = exp(s − lse) of a forward pass with the same inputs and options.
///
/// `inputs` are those of attention_forward(). v and v_scale are not read and may be absent; gate is read only for
/// first_gated. `lse` is (B,Hq,T,1), f32 or f64, from the forward pass. Rows with an infinite lse have no weights, and
/// all their statistics are 0. Rows with lse NaN have statistics NaN. topk_index is −1 in both cases.
///
/// Computes in f32, or in f64 for f64 inputs. Results are bitwise identical for any number of threads. Outputs must not
/// overlap inputs or each other. Throws headgate::Error for invalid arguments, before anything is written, and
/// std::bad_alloc if memory runs out. Throws Cancelled if options.context cancels the call; the outputs are then
/// unspecified.
HEADGATE_API void attention_statistics(const AttentionStatistics& outputs, const AttentionInputs& inputs,
                                       const ConstTensorView& lse, const StatisticsSelection& selection = {},
                                       const AttentionOptions& options = {});

}  // namespace headgate

#endif  // HEADGATE_STATISTICS_HPP_
