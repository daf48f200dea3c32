// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "library/linear_attention/problem.hpp"

// Kernels of the forward pass besides the scan of forward_kernel.cc.

namespace headgate {

/// Least number of tokens of a sequence, or of a part between snapshots, that bf16 products compute. The scan computes
/// shorter ones.
inline constexpr std::int64_t kLeastNative16Tokens = 32;

/// Returns why the kernel with bf16 products does not compute the call, or null if it does. The scan computes all other
/// calls.
const char* declines_native16(const LinearForwardProblem& p);

/// Runs the forward pass with bf16 products. Requires that declines_native16() returns null. Throws like
/// cpu_linear_forward().
void native16_linear_forward(const LinearForwardProblem& p);

}  // namespace headgate
