// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/tensor.hpp"
#include "library/attention/problem.hpp"
#include "library/core/workspace.hpp"

namespace headgate {

/// Copy of a bias in which the keys of each row are adjacent in memory, as kernels need them.
/// The original bias may have another layout. For example, a linear layer on pairs of tokens produces (T,S,H).
/// Viewed as (H,T,S), that tensor has adjacent heads instead of adjacent keys.
struct DenseBias {
  DenseBias(Workspace& ws, const Problem& problem);

  /// Returns true if the copy costs less than reading the original bias with its strides.
  static bool pays(const Problem& problem);

  /// Copies the bias of `problem` to `copy`.
  void fill(const Problem& problem) const;

  TensorView copy;  ///< the copy, (B,Hq,T,S); dimensions with stride 0 in the bias have stride 0 here
};

}  // namespace headgate
