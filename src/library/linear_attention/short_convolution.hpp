// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "headgate/short_convolution.hpp"
#include "library/core/element.hpp"
#include "library/linear_attention/token_range.hpp"

namespace headgate {

/// A part of a sequence: the tokens [begin, end).
struct ConvolutionRange : TokenRange {
  std::int64_t begin = 0, end = 0;
};

/// The checked arguments of a short convolution. `incoming` has dy in a backward pass only.
struct ShortConvolutionProblem {
  std::int64_t B = 0, T = 0, C = 0, K = 0;
  std::int64_t N = 0;  ///< number of sequences: those of a packed batch (varlen), otherwise B
  DType dtype = DType::none;
  GateFn activation = GateFn::silu;  ///< silu or none
  ExecutionContext context;          ///< result of resolved(), limited to one thread for small work
  ShortConvolutionInputs inputs;
  ShortConvolutionOutputs outputs;
  ShortConvolutionIncoming incoming;
  ShortConvolutionGradients gradients;

  bool packed() const { return inputs.cu_seqlens.present(); }
  bool silu() const { return activation == GateFn::silu; }
  /// snapshots() returns M, the number of snapshots of each sequence. states() returns how many states of each sequence
  /// a forward pass writes: the snapshots and the new state.
  std::int64_t snapshots() const { return snapshots_of(inputs.snapshot_lengths); }
  std::int64_t states() const { return snapshots() + (outputs.state.present() ? 1 : 0); }
  /// Returns the number of rows of x in all batches. Row t of batch b is row b · T + t of these.
  std::int64_t rows() const { return B * T; }

  /// Returns the range of all tokens of sequence n.
  ConvolutionRange sequence(std::int64_t n) const {
    const TokenRange s = sequence_of_batch(inputs.cu_seqlens, n, T);
    return {s, 0, s.T};
  }

  /// Calls visit(range) for each sequence that has tokens in rows [begin, end). `range` holds these tokens.
  template <class Visit>
  void each_range(std::int64_t begin, std::int64_t end, const Visit& visit) const {
    for (std::int64_t n = sequence_of(begin); begin < end; ++n) {
      ConvolutionRange range = sequence(n);
      const std::int64_t first = packed() ? range.t0 : n * T;
      range.begin = begin - first;
      range.end = std::min(end - first, range.T);
      if (range.begin < range.end) visit(range);
      begin = std::max(begin, first + range.end);
    }
  }

 private:
  /// Returns the sequence of a row: the last sequence that starts at or before this row.
  std::int64_t sequence_of(std::int64_t row) const {
    if (!packed()) return row / T;
    std::int64_t low = 0, high = N;
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (load_index(inputs.cu_seqlens, middle) <= row ? low : high) = middle;
    }
    return low;
  }
};

/// Runs the kernel on the context's vector target. Throws Cancelled. Throws std::bad_alloc before any output is
/// written.
void cpu_short_convolution(const ShortConvolutionProblem& problem);
void cpu_short_convolution_backward(const ShortConvolutionProblem& problem);

}  // namespace headgate
