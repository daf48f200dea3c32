// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "headgate/statistics.hpp"
#include "library/core/statistics_outputs.hpp"
#include "verify/oracle/oracle.hpp"

// Reference for attention_statistics: statistics of the oracle's weights.

namespace headgate::reference {

/// Returns |lse|, or 0 if lse is not finite. Kernels subtract lse from the scores of a row. The rounding error of lse,
/// which is proportional to |lse|, thus becomes an error of the scores.
inline double subtracted_from_scores(double lse) { return std::isfinite(lse) ? std::abs(lse) : 0.0; }

/// An output's elements in row-major order, with error bounds as in Forward and Backward.
struct StatisticsArray {
  std::vector<double> value, magnitude, like_terms;
};

struct Statistics {
  /// Outputs in the order of kStatisticsOutputs. topk_index has no values, because keys whose weights differ by less
  /// than their errors may come in either order.
  std::array<StatisticsArray, kStatisticsOutputs.size()> outputs;
};

/// Computes the statistics from the weights of `forward`, which has the same inputs and options.
/// `top_keys`: K, the number of keys listed per row. Ignores a gate that is added.
Statistics statistics(const Forward& forward, const AttentionInputs& inputs, const AttentionOptions& options,
                      const StatisticsSelection& selection, std::int64_t top_keys);

}  // namespace headgate::reference
