// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/gated_norm.hpp"

namespace headgate {

/// All that a gated norm reads and writes, checked; of its backward pass where dy is present.
struct GatedNormProblem {
  std::int64_t B = 0, H = 0, T = 0, D = 0;
  DType dtype = DType::none;
  double eps = 0.0;
  GateFn gate_fn = GateFn::none;  ///< none when no gate is present
  ExecutionContext context;       ///< resolved(); one thread where the work is small
  GatedNormInputs inputs;         ///< gate absent where gate_fn is none
  TensorView y;
  ConstTensorView dy;
  GatedNormGradients gradients;

  bool gated() const { return gate_fn != GateFn::none; }
  /// Whether each head has a weight of its own.
  bool weight_of_head() const { return inputs.weight.present() && inputs.weight.shape[1] != 1; }
};

/// Throws std::bad_alloc, before any output is written, and Cancelled; nothing else.
void cpu_gated_norm(const GatedNormProblem& problem);

}  // namespace headgate
