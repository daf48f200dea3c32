// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/attention.hpp"
#include "verify/oracle/oracle.hpp"
#include "verify/oracle/statistics.hpp"

namespace headgate::reference {

/// Compute the forward pass, the backward pass and the statistics of a packed batch. Each sequence is computed
/// separately, on views of its rows and columns; the results are then copied into the packed arrays.
Forward packed_forward(const AttentionInputs& inputs, const AttentionOptions& options);
Backward packed_backward(const AttentionInputs& inputs, const AttentionIncoming& incoming,
                         const AttentionOptions& options);
Statistics packed_statistics(const Forward& forward, const AttentionInputs& inputs, const AttentionOptions& options,
                             const StatisticsSelection& selection, std::int64_t top_keys);

}  // namespace headgate::reference
