// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headgate::layers {

/// Threshold and counters of an evaluation that skips attention for query rows with a closed gate. The counters
/// accumulate over calls.
struct AttentionSkip {
  double threshold = 0.0;        ///< AttentionOptions::gate_threshold; must be 0 if can_skip_attention() is false
  std::int64_t rows = 0;         ///< number of query rows, summed over heads
  std::int64_t closed_rows = 0;  ///< number of rows that were skipped
  double attention_seconds = 0.0;

  double closed_share() const { return rows > 0 ? static_cast<double>(closed_rows) / static_cast<double>(rows) : 0.0; }
};

}  // namespace headgate::layers
