// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/problem.hpp"

// What the public functions hand to the vector code once the arguments are checked.

namespace headgate {

struct ForwardCall {
  const Problem& problem;
  const AttentionInputs& inputs;
  const AttentionOutputs& outputs;
};

struct BackwardCall {
  const Problem& problem;
  const AttentionInputs& inputs;
  const AttentionSaved& saved;
  const AttentionIncoming& incoming;
  const AttentionGradients& gradients;
};

/// Run on the active target. They throw nothing but std::bad_alloc, before any output is written.
void run_forward(const ForwardCall& call);
void run_backward(const BackwardCall& call);

}  // namespace headgate
