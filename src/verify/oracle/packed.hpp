// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/attention.hpp"
#include "verify/oracle/oracle.hpp"
#include "verify/oracle/statistics.hpp"

namespace headgate::reference {

/// forward, backward and statistics of a packed batch: each sequence by itself, on views of its rows and columns; then
/// put together.
Forward packed_forward(const AttentionInputs& inputs, const AttentionOptions& options);
Backward packed_backward(const AttentionInputs& inputs, const AttentionIncoming& incoming,
                         const AttentionOptions& options);
Statistics packed_statistics(const Forward& forward, const AttentionInputs& inputs, const AttentionOptions& options,
                             const StatisticsSelection& selection, std::int64_t top_keys);

}  // namespace headgate::reference
