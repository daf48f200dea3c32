// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "headgate/merge.hpp"

namespace headgate {

/// Holds the checked arguments of attention_merge, or of attention_merge_backward if incoming.dy is present.
struct MergeProblem {
  std::int64_t B = 0, Hq = 0, T = 0, Dv = 0;
  DType dtype = DType::none;      ///< dtype of attn in all parts
  GateFn gate_fn = GateFn::none;  ///< GateFn::none if there is no gate
  GateOp gate_op = GateOp::mul;
  ExecutionContext context;  ///< execution context, with its defaults filled in
  std::span<const MergePart> parts;
  ConstTensorView gate;  ///< gate logits; absent if gate_fn is none
  AttentionOutputs outputs;
  AttentionIncoming incoming;
  std::span<const MergePartGradients> gradients;
  TensorView dgate;
};

/// Merges the parts on the CPU (cpu/merge_kernel.cc), or computes their gradients if incoming.dy is present.
/// Throws Cancelled, or throws std::bad_alloc before it writes any output.
void cpu_merge(const MergeProblem& problem);

}  // namespace headgate
