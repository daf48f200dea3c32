// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/gated_norm.hpp"

namespace headgate {

/// The checked arguments of a gated norm. The problem is a backward pass if dy is present.
struct GatedNormProblem {
  std::int64_t B = 0, H = 0, T = 0, D = 0;
  DType dtype = DType::none;
  double eps = 0.0;
  GateFn gate_fn = GateFn::none;  ///< none if the gate is absent
  ExecutionContext context;       ///< result of resolved(), with one thread if the work is small
  GatedNormInputs inputs;         ///< the gate is absent if gate_fn is none
  TensorView y;
  ConstTensorView dy;
  GatedNormGradients gradients;

  bool gated() const { return gate_fn != GateFn::none; }
  /// Returns whether each head has its own weight.
  bool weight_of_head() const { return inputs.weight.present() && inputs.weight.shape[1] != 1; }
};

/// Computes the forward or the backward pass. Throws only std::bad_alloc, before any output is written, and Cancelled.
void cpu_gated_norm(const GatedNormProblem& problem);

}  // namespace headgate
