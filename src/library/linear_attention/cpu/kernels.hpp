// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "library/linear_attention/problem.hpp"

// Declares the kernels with bf16 products. The scans (forward_scan-inl.hpp and backward_kernel.cc) compute the
// sequences that do not suit these kernels.

namespace headgate {

/// Least number of tokens for which the bf16 kernels are used. The scans compute shorter sequences, and shorter parts
/// of sequences between snapshots.
inline constexpr std::int64_t kLeastNative16Tokens = 32;

/// Returns null if the bf16 kernels compute a call. Otherwise returns the reason why the scans compute the call.
const char* declines_native16(const LinearForwardProblem& p);
const char* declines_native16(const LinearBackwardProblem& p);

/// Runs the forward pass with bf16 products. declines_native16() must return null. Throws like cpu_linear_forward().
void native16_linear_forward(const LinearForwardProblem& p);

/// Runs the backward pass with bf16 products. linear_backward_scans() computes two kinds of sequences instead: those of
/// fewer than kLeastNative16Tokens tokens, and those whose decays multiply to more than kMostFactor in a chunk.
/// declines_native16() must return null. Throws like cpu_linear_backward().
void native16_linear_backward(const LinearBackwardProblem& p);

/// Runs the scans of backward_kernel.cc on the chosen sequences.
void linear_backward_scans(const LinearBackwardProblem& p);

}  // namespace headgate
