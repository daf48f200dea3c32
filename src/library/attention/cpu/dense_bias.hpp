// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/tensor.hpp"
#include "library/attention/problem.hpp"
#include "library/core/workspace.hpp"

namespace headgate {

/// A copy of a bias with the keys of each row adjacent in memory, as the kernels read it. A bias that a linear layer
/// makes of pairs of tokens, (T,S,H) permuted to (H,T,S), has its heads adjacent instead.
struct DenseBias {
  DenseBias(Workspace& ws, const Problem& problem);

  /// Returns true if the copy costs less than reading the bias where it lies.
  static bool pays(const Problem& problem);

  /// Copies the bias of `problem`.
  void fill(const Problem& problem) const;

  TensorView copy;  ///< broadcast to (B,Hq,T,S) by stride 0, like the original
};

}  // namespace headgate
