// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/backend.hpp"

namespace headgate {

/// Run on the active vector target. They throw nothing but std::bad_alloc, before any output is written.
void cpu_forward(const ForwardCall& call);

/// Whether few_queries_forward can compute the call and is meant to.
bool suits_few_queries(const ForwardCall& call);
void few_queries_forward(const ForwardCall& call);
void cpu_backward(const BackwardCall& call);

}  // namespace headgate
