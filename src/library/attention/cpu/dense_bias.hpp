// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/tensor.hpp"
#include "library/attention/problem.hpp"
#include "library/core/workspace.hpp"

namespace headgate {

/// Memory for a bias, or for its gradient, in which the keys of each row are adjacent, as kernels need them.
/// The caller's tensor may have another layout. For example, a linear layer on pairs of tokens produces (T,S,H).
/// Viewed as (H,T,S), that tensor has adjacent heads instead of adjacent keys.
struct DenseBias {
  /// Takes memory for a tensor of the shape and dtype of `given`.
  DenseBias(Workspace& ws, const ConstTensorView& given);

  /// Returns true if a copy costs less than using `given`, the problem's bias or dbias, with its strides.
  static bool pays(const Problem& problem, const ConstTensorView& given);

  TensorView copy;  ///< the memory, (B,Hq,T,S); dimensions with stride 0 in the given tensor have stride 0 here
};

/// Copies the bias or dbias `from` to `to`, which has the same shape and dtype. In at least one of the two tensors, the
/// keys of a row must be adjacent in memory.
void copy_bias(const Problem& problem, const TensorView& to, const ConstTensorView& from);

}  // namespace headgate
