// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "headgate/linear_attention_statistics.hpp"
#include "library/core/linear_statistics_rows.hpp"

// The weights that linear attention hides, and their figures, in f64: the reference for linear_attention_weights and
// linear_attention_statistics. The plain recurrence of the oracle gives them as its outputs: with v_t = e_t the output
// of token t has a_tj in column j, and with S_0 = I behind those columns it has r_t there. So the T × T weights are
// made without the walk back over tokens that the kernels go.

namespace headgate::reference {

/// An output's elements in the order of its shape, with what bounds their rounding errors, as in LinearForward.
struct LinearFigureArray {
  std::vector<double> value, magnitude;
};

/// Of all queries.
struct LinearWeightRows {
  LinearFigureArray weights;      // (B,Ho,T,T)
  LinearFigureArray state_query;  // (B,Ho,T,D)
  LinearFigureArray sum;          // (B,Ho,T)
};

struct LinearStatistics {
  std::array<LinearFigureArray, kLinearStatistics.size()> outputs;  // in the order of the rows
};

LinearWeightRows linear_weights(const LinearAttentionInputs& inputs, const LinearAttentionOptions& options);

/// `rows`: of linear_weights.
LinearStatistics linear_statistics(const LinearAttentionInputs& inputs, const LinearAttentionOptions& options,
                                   const LinearWeightRows& rows);

}  // namespace headgate::reference
