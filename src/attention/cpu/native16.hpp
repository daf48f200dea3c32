// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "attention/problem.hpp"

// Precision::native16: products of bf16 numbers in the instructions that a CPU has for them.

namespace headgate {

/// What multiplies bf16 numbers, best last. dots: AVX-512 BF16; tiles: AMX, with the conversions of AVX-512 BF16.
enum class Native16Unit { none, dots, tiles };

/// What calls on a vector target multiply with: the CPU's best unit if it is faster than f32 products, or the one that
/// set_native16_products chose; none on targets other than AVX-512. The first call asks the operating system for the
/// tiles, once for the process.
Native16Unit native16_unit(std::int64_t target);

/// Whether native16_forward computes the problem. What it leaves to the kernels with f32 products: few queries of few
/// keys, a gate threshold, int8 keys and values, weights; and, in a problem that it takes, the sequences of few
/// queries.
bool takes_native16(const ForwardProblem& problem);
/// Whether native16_backward computes it, which leaves few queries of few keys and dbias to them.
bool takes_native16(const BackwardProblem& problem);

/// As cpu_forward and cpu_backward, for problems that takes_native16 accepts.
void native16_forward(const ForwardProblem& problem);
void native16_backward(const BackwardProblem& problem);

}  // namespace headgate
