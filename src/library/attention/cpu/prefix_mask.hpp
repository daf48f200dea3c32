// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "library/attention/problem.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"

namespace headgate {

/// Key lengths that replace a padding mask. Such a mask shows the first keys of each sequence and hides the others.
/// Lengths save work: kernels skip keys beyond a length, but compute the scores of masked keys before they hide them.
struct PrefixMask {
  PrefixMask(Workspace& ws, const Problem& problem) : keys(ws.take<std::int64_t>("key lengths", problem.B)) {}

  /// Returns true if lengths might replace the mask: all queries and heads of a sequence share one row of the mask.
  static bool may_suit(const Problem& problem);

  /// Writes the key lengths.
  /// Returns false if some sequence shows a key after a hidden one, because no length describes that.
  bool fill(const Problem& problem) const;

  View<std::int64_t, 1> keys;
};

}  // namespace headgate
