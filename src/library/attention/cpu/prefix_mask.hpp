// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "library/attention/problem.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"

namespace headgate {

/// Key lengths in place of a mask that shows the first keys of each sequence and hides the others, as padding does.
/// Kernels skip keys beyond a length, but compute and then hide keys of a mask.
struct PrefixMask {
  PrefixMask(Workspace& ws, const Problem& problem) : keys(ws.take<std::int64_t>("key lengths", problem.B)) {}

  /// Returns true if all queries and heads of a sequence share the mask.
  static bool may_suit(const Problem& problem);

  /// Writes the key lengths. Returns false if a sequence shows a key after a hidden one.
  bool fill(const Problem& problem) const;

  View<std::int64_t, 1> keys;
};

}  // namespace headgate
