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

/// |lse|: what is subtracted from the scores of a row, rounded to the type that the kernels compute in.
inline double subtracted_from_scores(double lse) { return std::isfinite(lse) ? std::abs(lse) : 0.0; }

/// An output's elements in the order of its shape, with what bounds their rounding errors, as in Forward and Backward.
struct StatisticsArray {
  std::vector<double> value, magnitude, like_terms;
};

struct Statistics {
  /// In the order of the rows. topk_index has none: of weights that lie closer than their errors either may come first.
  std::array<StatisticsArray, kStatisticsOutputs.size()> outputs;
};

/// Of the weights of `forward`, for the same inputs and options; `top_keys`: K. A gate is read where there is one that
/// multiplies.
Statistics statistics(const Forward& forward, const AttentionInputs& inputs, const AttentionOptions& options,
                      const StatisticsSelection& selection, std::int64_t top_keys);

}  // namespace headgate::reference
