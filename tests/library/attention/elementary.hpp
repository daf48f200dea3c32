// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "headgate/attention.hpp"

// Computes the elementary functions of src/library/attention/*-inl.hpp on whole arrays, on a chosen vector target.

namespace headgate::numerics {

/// What to compute from each element: 2^x, tanh x, or a part of the gate function `fn`.
enum class Part { exp2, tanh, gate_value, gate_derivative, gate_ratio };

struct Function {
  Part part;
  GateFn fn = GateFn::none;  ///< for the parts of a gate
};

struct Target {
  std::string name;
  std::int64_t bit;
};

/// Returns the targets in this binary that the CPU can run.
std::vector<Target> runnable_targets();

/// y[0..n) = f(x[0..n)). gate_ratio: only for functions without a zero.
void evaluate(const Target& target, const Function& f, const float* x, std::size_t n, float* y);
void evaluate(const Target& target, const Function& f, const double* x, std::size_t n, double* y);

}  // namespace headgate::numerics
