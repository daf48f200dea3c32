// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headgate::layers {

/// A forward pass that leaves out rows whose gate is closed, for evaluation, and what it counted: sums over calls.
struct AttentionSkip {
  double threshold = 0.0;        ///< AttentionOptions::gate_threshold; above 0 for can_skip_attention alone
  std::int64_t rows = 0;         ///< queries of heads
  std::int64_t closed_rows = 0;  ///< of those, not computed
  double attention_seconds = 0.0;

  double closed_share() const { return rows > 0 ? static_cast<double>(closed_rows) / static_cast<double>(rows) : 0.0; }
};

}  // namespace headgate::layers
