// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "headgate/linear_attention_statistics.hpp"
#include "library/core/linear_statistics_rows.hpp"

// Reference for linear_attention_weights and linear_attention_statistics, in f64. The oracle's recurrence gives the T ×
// T weights a as its outputs; it does not walk back over the tokens as the kernels do. In the first T value columns v_t
// is the t-th unit vector and S_0 is 0, so that output t is row t of a. In D more columns v is 0 and S_0 is I, so that
// output t is r_t, the vector by which query t reads S_0.

namespace headgate::reference {

/// Elements of an output in the order of its shape, with bounds on their rounding errors as in LinearForward.
struct LinearFigureArray {
  std::vector<double> value, magnitude;
};

/// Weights of all queries, not only of the chosen ones.
struct LinearWeightRows {
  LinearFigureArray weights;      // (B,Ho,T,T)
  LinearFigureArray state_query;  // (B,Ho,T,D)
  LinearFigureArray sum;          // (B,Ho,T)
};

struct LinearStatistics {
  std::array<LinearFigureArray, kLinearStatistics.size()> outputs;  // in the order of kLinearStatistics
};

LinearWeightRows linear_weights(const LinearAttentionInputs& inputs, const LinearAttentionOptions& options);

/// Computes the statistics from `rows`, the result of linear_weights.
LinearStatistics linear_statistics(const LinearAttentionInputs& inputs, const LinearAttentionOptions& options,
                                   const LinearWeightRows& rows);

}  // namespace headgate::reference
