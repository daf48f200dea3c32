// SPDX-License-Identifier: Apache-2.0
#include "library/attention/backend.hpp"
#include "library/attention/call_report.hpp"

namespace headgate {

void attention_backward(const AttentionGradients& gradients, const AttentionInputs& inputs, const AttentionSaved& saved,
                        const AttentionIncoming& incoming, const AttentionOptions& options) {
  BackwardProblem problem = check_backward(gradients, inputs, saved, incoming, options);
  run_reported("attention_backward", problem, options, [&] { backend_for(problem).backward(problem); });
}

}  // namespace headgate
