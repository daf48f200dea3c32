// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "library/linear_attention/problem.hpp"

// Kernels with bf16 products, and the scans that compute the sequences that such a kernel declines.

namespace headgate {

/// Least number of tokens of a sequence, or of a part between snapshots, that bf16 products compute. The scan computes
/// shorter ones.
inline constexpr std::int64_t kLeastNative16Tokens = 32;

/// Returns why the kernel with bf16 products does not compute the call, or null if it does. The scan computes all other
/// calls.
const char* declines_native16(const LinearForwardProblem& p);
const char* declines_native16(const LinearBackwardProblem& p);

/// Runs the forward pass with bf16 products. Requires that declines_native16() returns null. Throws like
/// cpu_linear_forward().
void native16_linear_forward(const LinearForwardProblem& p);

/// Runs the backward pass, with bf16 products in sequences that permit them. linear_backward_scans() computes the
/// others: sequences of fewer than kLeastNative16Tokens tokens, and sequences with growing decays. Requires that
/// declines_native16() returns null. Throws like cpu_linear_backward().
void native16_linear_backward(const LinearBackwardProblem& p);

/// Runs the scans of backward_kernel.cc on the chosen sequences.
void linear_backward_scans(const LinearBackwardProblem& p);

}  // namespace headgate
