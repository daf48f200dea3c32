// SPDX-License-Identifier: Apache-2.0
#include "library/attention/backend.hpp"

namespace headgate {

void attention_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                       const AttentionOptions& options) {
  const ForwardProblem problem = check_forward(outputs, inputs, options);
  backend_for(problem).forward(problem);
}

}  // namespace headgate
