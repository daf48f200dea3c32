// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "headgate/merge.hpp"

namespace headgate {

/// All that a merge reads and writes, checked; of its backward pass where `incoming` has dy.
struct MergeProblem {
  std::int64_t B = 0, Hq = 0, T = 0, Dv = 0;
  DType dtype = DType::none;      ///< of attn, of all parts
  GateFn gate_fn = GateFn::none;  ///< none when no gate is present
  GateOp gate_op = GateOp::mul;
  ExecutionContext context;  ///< resolved()
  std::span<const MergePart> parts;
  ConstTensorView gate;  ///< absent where gate_fn is none
  AttentionOutputs outputs;
  AttentionIncoming incoming;
  std::span<const MergePartGradients> gradients;
  TensorView dgate;
};

/// Throws std::bad_alloc, before any output is written, and Cancelled (cpu/merge_kernel.cc).
void cpu_merge(const MergeProblem& problem);

}  // namespace headgate
