// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "headgate/attention.hpp"

namespace headgate {

/// The arguments of one call, checked and in normal form: what kernels read beside the tensors.
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
  std::vector<std::int64_t> key_lengths;  ///< B entries; S where the caller gave none
  std::vector<double> alibi_slopes;       ///< Hq entries, or empty
  std::vector<double> sinks;              ///< Hq entries, or empty
  ConstTensorView bias;                   ///< stretched to (B,Hq,T,S), or absent
  ConstTensorView mask;                   ///< stretched to (B,Hq,T,S), or absent
  int threads = 1;
};

/// Throws Error, naming the argument and the values, unless the arguments fit together. Reads the small vectors
/// (key_lengths, alibi_slopes, sinks) and no other tensor data.
Problem check_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs, const AttentionOptions& options);
Problem check_backward(const AttentionGradients& gradients, const AttentionInputs& inputs, const AttentionSaved& saved,
                       const AttentionIncoming& incoming, const AttentionOptions& options);

}  // namespace headgate
