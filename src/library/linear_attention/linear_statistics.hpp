// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "headgate/linear_attention_statistics.hpp"
#include "library/linear_attention/problem.hpp"

namespace headgate {

/// Queries that go back over the tokens together, enough that packing a key is a small part of their work. It decides
/// no bits.
inline constexpr std::int64_t kTileQueries = 256;

/// Queries first … first + count of sequence n: tokens of the sequence, or numbers of chosen queries.
struct QueryTile {
  std::int64_t n, first, count;
};

/// A chosen query: a row of q, and the row of the outputs that it goes to.
struct ChosenQuery {
  std::int64_t token, row;
};

/// All that linear_attention_weights reads and writes.
struct LinearWeightsProblem : LinearProblem {
  LinearAttentionWeights outputs;
  std::vector<ChosenQuery> chosen;  ///< ascending tokens
  std::vector<QueryTile> tiles;     ///< of `chosen`
};

/// All that linear_attention_statistics reads and writes.
struct LinearStatisticsProblem : LinearProblem {
  LinearAttentionStatistics outputs;
  std::vector<QueryTile> tiles;  ///< sequence after sequence, ascending tokens; none where no figure needs all weights

  /// Whether figures are asked for that all weights of a query decide.
  bool walks() const;
  /// Whether figures are asked for that one pass over the tokens of a state gives.
  bool scans() const;
  /// Whether figures of S_T are asked for.
  bool needs_state() const { return outputs.effective_rank.present() || outputs.state_norm.present(); }
};

/// Kernels run on the context's vector target. They throw nothing but std::bad_alloc, before any output is written, and
/// Cancelled.
void cpu_linear_weights(const LinearWeightsProblem& problem);
void cpu_linear_statistics(const LinearStatisticsProblem& problem);

}  // namespace headgate
