// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "headgate/statistics.hpp"
#include "library/core/statistics_outputs.hpp"
#include "verify/oracle/oracle.hpp"

// Statistics of the oracle's weights: the reference for attention_statistics.

namespace headgate::reference {

/// Returns |lse|, or 0 if lse is not finite. Kernels subtract lse, rounded to the compute type, from the scores of a
/// row.
inline double subtracted_from_scores(double lse) { return std::isfinite(lse) ? std::abs(lse) : 0.0; }

/// Elements of an output in the order of its shape, with bounds on their rounding errors as in Forward and Backward.
struct StatisticsArray {
  std::vector<double> value, magnitude, like_terms;
};

struct Statistics {
  /// Outputs in the order of kStatisticsOutputs. topk_index has no values: if two weights differ by less than their
  /// errors, either may come first.
  std::array<StatisticsArray, kStatisticsOutputs.size()> outputs;
};

/// Computes statistics of the weights of `forward` for the same inputs and options. `top_keys` is K. The gate is read
/// only if it multiplies.
Statistics statistics(const Forward& forward, const AttentionInputs& inputs, const AttentionOptions& options,
                      const StatisticsSelection& selection, std::int64_t top_keys);

}  // namespace headgate::reference
