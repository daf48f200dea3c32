// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/problem.hpp"

namespace headgate {

/// Run on the context's vector target. They throw nothing but std::bad_alloc, before any output is written.
void cpu_forward(const ForwardProblem& problem);
void cpu_backward(const BackwardProblem& problem);

}  // namespace headgate
