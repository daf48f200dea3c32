// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/gated_norm.hpp"

namespace headgate {

/// The checked arguments of a gated norm. dy is present in a backward pass only.
struct GatedNormProblem {
  std::int64_t B = 0, H = 0, T = 0, D = 0;
  DType dtype = DType::none;
  double eps = 0.0;
  GateFn gate_fn = GateFn::none;  ///< none if `gate` is absent
  ExecutionContext context;       ///< result of resolved(), limited to one thread for small work
  GatedNormInputs inputs;         ///< `gate` is absent if gate_fn is none
  TensorView y;
  ConstTensorView dy;
  GatedNormGradients gradients;

  bool gated() const { return gate_fn != GateFn::none; }
  /// Returns whether each head has its own weight.
  bool weight_of_head() const { return inputs.weight.present() && inputs.weight.shape[1] != 1; }
};

/// Computes the forward or the backward pass. Throws Cancelled. Throws std::bad_alloc before any output is written.
void cpu_gated_norm(const GatedNormProblem& problem);

}  // namespace headgate
