// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "headgate/short_convolution.hpp"
#include "library/core/element.hpp"
#include "library/linear_attention/token_range.hpp"

namespace headgate {

/// Tokens begin … end of a sequence.
struct ConvolutionRange : TokenRange {
  std::int64_t begin = 0, end = 0;
};

/// All that a convolution reads and writes, checked; of its backward pass where `incoming` has dy.
struct ShortConvolutionProblem {
  std::int64_t B = 0, T = 0, C = 0, K = 0;
  std::int64_t N = 0;  ///< sequences: B, or those of a packed batch
  DType dtype = DType::none;
  GateFn activation = GateFn::silu;  ///< silu or none
  ExecutionContext context;          ///< resolved(); one thread where the work is small
  ShortConvolutionInputs inputs;
  ShortConvolutionOutputs outputs;
  ShortConvolutionIncoming incoming;
  ShortConvolutionGradients gradients;

  bool packed() const { return inputs.cu_seqlens.present(); }
  bool silu() const { return activation == GateFn::silu; }
  /// Rows of all batches, counted one batch after the other.
  std::int64_t rows() const { return B * T; }

  /// All tokens of sequence n.
  ConvolutionRange sequence(std::int64_t n) const {
    const TokenRange s = sequence_of_batch(inputs.cu_seqlens, n, T);
    return {s, 0, s.T};
  }

  /// visit(range) for the tokens in rows begin … end, sequence by sequence.
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
  /// The sequence of a row: the last one that starts there or before.
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

/// Throw std::bad_alloc, before any output is written, and Cancelled; nothing else.
void cpu_short_convolution(const ShortConvolutionProblem& problem);
void cpu_short_convolution_backward(const ShortConvolutionProblem& problem);

}  // namespace headgate
