// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "library/attention/problem.hpp"

// Precision::native16: products of bf16 numbers in the instructions that a CPU has for them.

namespace headgate {

/// What multiplies bf16 numbers, best last. dots: AVX-512 BF16; tiles: AMX, with the conversions of AVX-512 BF16.
enum class Native16Unit { none, dots, tiles };

/// What calls on a vector target multiply with: the CPU's best unit if it is faster than f32 products, or the one that
/// set_native16_products chose; none on targets other than AVX-512. The first call asks the operating system for the
/// tiles, once for the process.
Native16Unit native16_unit(std::int64_t target);

/// Whether native16_forward may compute sequences of the problem. It leaves these to the kernels with f32 products: a
/// gate threshold, int8 keys and values, weights.
bool may_take_native16(const ForwardProblem& problem);
/// Whether native16_backward may. It leaves dbias to the other kernels.
bool may_take_native16(const BackwardProblem& problem);

/// Whether bf16 products suit the sequence: more than a few queries or keys. The sequence's own lengths decide, so that
/// a packed batch has the bits of separate calls. In the forward pass suits_few_queries takes precedence.
bool suits_native16(const ForwardProblem& problem, const Sequence& sequence);
bool suits_native16(const BackwardProblem& problem, const Sequence& sequence);

/// Compute the sequences that suits_native16 accepts, and have the kernels with f32 products compute the others, for
/// problems that may_take_native16 accepts.
void native16_forward(const ForwardProblem& problem);
void native16_backward(const BackwardProblem& problem);

}  // namespace headgate
