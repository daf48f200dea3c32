// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "headgate/linear_attention_statistics.hpp"
#include "library/core/linear_statistics_rows.hpp"

// Reference for linear_attention_weights and linear_attention_statistics, in f64. Runs the oracle's forward recurrence
// on special values, whose outputs are the T × T weights a. The kernels instead walk backward over the tokens. The
// special values have these columns:
// - T columns in which v_t is the t-th unit vector and S_0 is 0. Output t is row t of a.
// - D columns in which v is 0 and S_0 is I. Output t is r_t, the vector by which query t reads S_0.
// - one column in which v is 1 and S_0 is 0. Output t is the sum of row t of a.

namespace headgate::reference {

/// An output's elements in row-major order, with magnitudes (error bounds, see LinearForward).
struct LinearFigureArray {
  std::vector<double> value, magnitude;
};

/// Weights of all queries, not only of those that the problem selects.
struct LinearWeightRows {
  LinearFigureArray weights;      // (B,Ho,T,T)
  LinearFigureArray state_query;  // (B,Ho,T,D)
  LinearFigureArray sum;          // (B,Ho,T)
};

struct LinearStatistics {
  // One array for each row of kLinearStatistics, in the same order.
  std::array<LinearFigureArray, kLinearStatistics.size()> outputs;
};

LinearWeightRows linear_weights(const LinearAttentionInputs& inputs, const LinearAttentionOptions& options);

/// Computes the statistics from `rows`, which linear_weights() returned.
LinearStatistics linear_statistics(const LinearAttentionInputs& inputs, const LinearAttentionOptions& options,
                                   const LinearWeightRows& rows);

}  // namespace headgate::reference
