// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/element.hpp"
#include "headgate/attention.hpp"

namespace headgate {

/// The arguments that both passes share, checked and in normal form.
struct Problem {
  std::int64_t B = 0, Hq = 0, Hkv = 0, T = 0, S = 0, D = 0, Dv = 0;
  std::int64_t group = 1;  ///< Hq / Hkv
  double scale = 1.0;
  double softcap = 0.0;  ///< 0: none
  /// Key j is visible to query i iff lo ≤ j ≤ hi, lo = i + S − T − window_left (−1: 0), hi likewise (−1: S − 1).
  /// Causality is folded in.
  std::int64_t window_left = -1, window_right = -1;
  GateFn gate_fn = GateFn::none;  ///< none when no gate is present
  GateOp gate_op = GateOp::mul;
  bool gate_headwise = false;
  ExecutionContext context;  ///< resolved()
  /// As given, but for bias and mask, stretched to (B,Hq,T,S) by stride 0, and gate, absent where gate_fn is none.
  AttentionInputs inputs;

  /// Keys of batch b; all S where the caller gave no lengths.
  std::int64_t key_length(std::int64_t b) const {
    return inputs.key_lengths.present() ? load_index(inputs.key_lengths, b) : S;
  }
  double alibi_slope(std::int64_t h) const { return load(inputs.alibi_slopes, 0, 0, 0, h); }
  double sink(std::int64_t h) const { return load(inputs.sinks, 0, 0, 0, h); }
};

/// All that a forward pass reads and writes.
struct ForwardProblem : Problem {
  AttentionOutputs outputs;
};

/// All that a backward pass reads and writes.
struct BackwardProblem : Problem {
  AttentionSaved saved;
  AttentionIncoming incoming;
  AttentionGradients gradients;
};

/// Throws Error, naming the argument and the values, unless the arguments fit together. Reads the small vectors
/// (key_lengths, alibi_slopes, sinks) and no other tensor data.
ForwardProblem check_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                             const AttentionOptions& options);
BackwardProblem check_backward(const AttentionGradients& gradients, const AttentionInputs& inputs,
                               const AttentionSaved& saved, const AttentionIncoming& incoming,
                               const AttentionOptions& options);

}  // namespace headgate
