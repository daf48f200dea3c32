// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_STATISTICS_HPP_
#define HEADGATE_STATISTICS_HPP_

#include <cstdint>

#include "headgate/attention.hpp"
#include "headgate/export.h"
#include "headgate/tensor.hpp"

/// @file
/// Where attention looks, without the T×S weights P = exp(s − lse) of headgate/attention.hpp: one product q kᵀ, in O(T)
/// memory beside the outputs. P are the weights before dropout, whatever the options say of it.

namespace headgate {

/// The largest number of keys that top-k gives of a row.
inline constexpr std::int64_t kMaxTopKeys = 1024;

/// Which keys and queries statistics are of.
struct StatisticsSelection {
  /// (1,1,1,J), i32 or i64, 0 ≤ j < S, any order, may repeat: those of key_weights. In a packed batch key j of each
  /// sequence; one that it does not have has weight 0.
  ConstTensorView keys{};
  /// (1,1,1,R), i32 or i64, 0 ≤ i < T, any order, may repeat: those of `rows`. In a packed batch rows of q.
  ConstTensorView queries{};
  std::int64_t window = 0;  ///< W ≥ 0, read when a window share is asked for
};

/// What attention_statistics overwrites; each may be absent, and what is absent is not computed. All are f32 or f64,
/// topk_index i32 or i64.
///
/// Of a packed batch, means have the number of its sequences, N, in place of B, and so has key_mass where its keys are
/// paged. Else key_mass and rows have the S columns of all sequences there, rows 0 in those of others, while first,
/// key_weights and topk_index count keys within the query's own sequence.
///
/// cost, in forward passes              | outputs
/// ---|---
/// a few keys' share                    | first, first_gated, key_weights
/// the window's share                   | window_share
/// about a half: q kᵀ                   | row_max, topk_index, topk_weight
/// q kᵀ and its exponentials            | entropy, key_mass
struct AttentionStatistics {
  TensorView row_max{};  ///< (B,Hq,T,1): maxⱼ P_ij; the largest score is log(row_max) + lse
  /// (B,Hq,T,1): −Σⱼ P_ij log P_ij, in nats; a sink's weight exp(sink − lse) is one more outcome of the sum.
  TensorView entropy{};
  TensorView first{};        ///< (B,Hq,T,1): P_i0
  TensorView first_gated{};  ///< (B,Hq,T,1): P_i0 · mean over features of g(z_i): what passes a gate that multiplies
  /// (B,Hq,T,1): Σ P_ij over |at_i − j| ≤ W; the rest of 1 lies outside the window or in the sink.
  TensorView window_share{};
  TensorView key_weights{};  ///< (B,Hq,T,J): P_ij of selection.keys

  /// Means of those over the queries of a sequence: (B,Hq,1,1). Under a causal mask the query at the first key is left
  /// out: it sees itself alone. Rows that see nothing count. 0 of no queries.
  TensorView mean_row_max{};
  TensorView mean_entropy{};
  TensorView mean_first{};
  TensorView mean_first_gated{};
  TensorView mean_window_share{};
  TensorView mean_key_weights{};  ///< (B,Hq,1,J)

  TensorView key_mass{};  ///< (B,Hq,1,S): Σᵢ P_ij, what key j receives
  /// (B,Hq,T,K), 1 ≤ K ≤ kMaxTopKeys: the K keys of the largest scores, largest first, of equal ones the lower index
  /// first; −1 where fewer than K have a weight above 0.
  TensorView topk_index{};
  TensorView topk_weight{};  ///< (B,Hq,T,K): their weights; 0 beside −1
  TensorView rows{};         ///< (B,Hq,R,S): P_ij of selection.queries, 0 where hidden
};

/// Statistics of the weights P = exp(s − lse) that a forward pass on the same inputs and options has used.
///
/// `inputs`: as for attention_forward, but v and v_scale are not read and may be absent, and gate is read for
/// first_gated alone. `lse`: (B,Hq,T,1), f32 or f64, of that forward pass. Where it is −∞ or +∞ the row has no weights
/// and all its figures are 0; where it is NaN they are NaN, and topk_index is −1. Computed in f32, in f64 for f64.
/// Deterministic: the same bits for any number of threads. Outputs must not overlap inputs or each other. Throws
/// headgate::Error, before anything is written, on arguments that do not fit; std::bad_alloc when memory runs out.
HEADGATE_API void attention_statistics(const AttentionStatistics& outputs, const AttentionInputs& inputs,
                                       const ConstTensorView& lse, const StatisticsSelection& selection = {},
                                       const AttentionOptions& options = {});

}  // namespace headgate

#endif  // HEADGATE_STATISTICS_HPP_
