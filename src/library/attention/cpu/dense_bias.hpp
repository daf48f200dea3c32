// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/tensor.hpp"
#include "library/attention/problem.hpp"
#include "library/core/workspace.hpp"

namespace headgate {

/// Copy of a bias in which the keys of each row are adjacent in memory, as kernels read them.
/// The original bias may have other layouts. For example, a linear layer on pairs of tokens produces (T,S,H), and in
/// the view (H,T,S) of this tensor, heads are adjacent.
struct DenseBias {
  DenseBias(Workspace& ws, const Problem& problem);

  /// Returns true if the copy costs less than reading the original bias with its strides.
  static bool pays(const Problem& problem);

  /// Copies the bias of `problem`.
  void fill(const Problem& problem) const;

  TensorView copy;  ///< the copy, (B,Hq,T,S); dimensions in which the bias has stride 0 stay broadcast
};

}  // namespace headgate
