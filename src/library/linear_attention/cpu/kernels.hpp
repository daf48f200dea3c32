// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "library/linear_attention/problem.hpp"

// Declares the kernels with bf16 products. The scans (forward_scan-inl.hpp and backward_kernel.cc) compute the
// sequences that do not suit these kernels.

namespace headgate {

/// Least number of tokens that the bf16 kernels compute, in a sequence or in a part between snapshots. Scans compute
/// shorter sequences and parts.
inline constexpr std::int64_t kLeastNative16Tokens = 32;

/// Returns the reason why the bf16 kernel does not compute a call, or null if it does. Scans compute all other calls.
const char* declines_native16(const LinearForwardProblem& p);
const char* declines_native16(const LinearBackwardProblem& p);

/// Runs the forward pass with bf16 products. declines_native16() must return null. Throws like cpu_linear_forward().
void native16_linear_forward(const LinearForwardProblem& p);

/// Runs the backward pass, with bf16 products in the sequences that permit them. linear_backward_scans() computes
/// sequences of fewer than kLeastNative16Tokens tokens and sequences with growing decays. declines_native16() must
/// return null. Throws like cpu_linear_backward().
void native16_linear_backward(const LinearBackwardProblem& p);

/// Runs the scans of backward_kernel.cc on the chosen sequences.
void linear_backward_scans(const LinearBackwardProblem& p);

}  // namespace headgate
