// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "headgate/merge.hpp"

namespace headgate {

/// Checked arguments of attention_merge, or of its backward pass if incoming.dy is present.
struct MergeProblem {
  std::int64_t B = 0, Hq = 0, T = 0, Dv = 0;
  DType dtype = DType::none;      ///< dtype of attn in all parts
  GateFn gate_fn = GateFn::none;  ///< none if there is no gate
  GateOp gate_op = GateOp::mul;
  ExecutionContext context;  ///< the context with its defaults resolved
  std::span<const MergePart> parts;
  ConstTensorView gate;  ///< absent if gate_fn is none
  AttentionOutputs outputs;
  AttentionIncoming incoming;
  std::span<const MergePartGradients> gradients;
  TensorView dgate;
};

/// Merges the parts on the CPU (cpu/merge_kernel.cc). Throws std::bad_alloc, before any output is written, and
/// Cancelled.
void cpu_merge(const MergeProblem& problem);

}  // namespace headgate
