// SPDX-License-Identifier: Apache-2.0
#include "library/attention/backend.hpp"

namespace headgate {

void attention_backward(const AttentionGradients& gradients, const AttentionInputs& inputs, const AttentionSaved& saved,
                        const AttentionIncoming& incoming, const AttentionOptions& options) {
  const BackwardProblem problem = check_backward(gradients, inputs, saved, incoming, options);
  backend_for(problem).backward(problem);
}

}  // namespace headgate
