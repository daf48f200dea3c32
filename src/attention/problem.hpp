// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/element.hpp"
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
  ConstTensorView key_lengths;   ///< (1,1,1,B), or absent
  ConstTensorView alibi_slopes;  ///< (1,1,1,Hq), or absent
  ConstTensorView sinks;         ///< (1,1,1,Hq), or absent
  ConstTensorView bias;          ///< stretched to (B,Hq,T,S), or absent
  ConstTensorView mask;          ///< stretched to (B,Hq,T,S), or absent
  ExecutionContext context;      ///< resolved()

  /// Keys of batch b; all S where the caller gave no lengths.
  std::int64_t key_length(std::int64_t b) const { return key_lengths.present() ? load_index(key_lengths, b) : S; }
  double alibi_slope(std::int64_t h) const { return load(alibi_slopes, 0, 0, 0, h); }
  double sink(std::int64_t h) const { return load(sinks, 0, 0, 0, h); }
};

/// Throws Error, naming the argument and the values, unless the arguments fit together. Reads the small vectors
/// (key_lengths, alibi_slopes, sinks) and no other tensor data.
Problem check_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs, const AttentionOptions& options);
Problem check_backward(const AttentionGradients& gradients, const AttentionInputs& inputs, const AttentionSaved& saved,
                       const AttentionIncoming& incoming, const AttentionOptions& options);

}  // namespace headgate
