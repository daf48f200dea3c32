// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "headgate/linear_attention_statistics.hpp"
#include "library/linear_attention/problem.hpp"

namespace headgate {

/// Largest number of queries in a tile. A walk goes back over the tokens once for all queries of a tile, so it packs
/// each key only once. With this number, packing is a small part of the work. The weights of a query do not depend on
/// this number.
inline constexpr std::int64_t kWalkQueries = 256;

/// A tile: queries [first, first + count) of sequence n. In linear_attention_statistics, a query is a token of the
/// sequence. In linear_attention_weights, it is an index of LinearWeightsProblem::chosen.
struct QueryTile {
  std::int64_t n, first, count;
};

/// A query whose weights are requested. `token` is its row of q, and `row` its row in the outputs.
struct ChosenQuery {
  std::int64_t token, row;
};

/// The checked arguments of linear_attention_weights().
struct LinearWeightsProblem : LinearProblem {
  LinearAttentionWeights outputs;
  std::vector<ChosenQuery> chosen;  ///< ascending tokens
  std::vector<QueryTile> tiles;     ///< ranges of `chosen`; each lies within one sequence
};

/// The checked arguments of linear_attention_statistics().
struct LinearStatisticsProblem : LinearProblem {
  LinearAttentionStatistics outputs;
  std::vector<QueryTile> tiles;  ///< tiles of all queries, ordered by sequence and token; empty if walks() is false

  /// Returns whether a requested statistic needs every weight of a query, and thus a walk back over the tokens
  /// (QueryWalk).
  bool walks() const;
  /// Returns whether a requested statistic needs a forward scan over the tokens (StateStatistics).
  bool scans() const;
  /// Returns whether a statistic of the final state S_T is requested.
  bool needs_state() const { return outputs.effective_rank.present() || outputs.state_norm.present(); }
};

/// Runs the kernel on the context's vector target. Throws Cancelled. Throws std::bad_alloc before any output is
/// written.
void cpu_linear_weights(const LinearWeightsProblem& problem);
void cpu_linear_statistics(const LinearStatisticsProblem& problem);

}  // namespace headgate
