// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "library/attention/problem.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"

namespace headgate {

/// Key lengths that replace a padding mask, which shows the first keys of each sequence and hides the others.
/// Lengths save work: kernels skip keys beyond a length, but they compute the scores of masked keys.
struct PrefixMask {
  PrefixMask(Workspace& ws, const Problem& problem) : keys(ws.take<std::int64_t>("key lengths", problem.B)) {}

  /// Returns true if fill() may find key lengths. This requires a batch of several sequences.
  /// All queries and heads of a sequence must share one row of the mask.
  static bool may_suit(const Problem& problem);

  /// Writes the key lengths. Returns false if the mask of some sequence shows a key after a hidden key.
  /// No length describes such a mask.
  bool fill(const Problem& problem) const;

  View<std::int64_t, 1> keys;
};

}  // namespace headgate
