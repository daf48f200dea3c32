// SPDX-License-Identifier: Apache-2.0
#include "library/attention/backend.hpp"
#include "library/attention/call_report.hpp"
#include "library/core/attention_tensors.hpp"
#include "library/core/tensor_rows.hpp"

namespace headgate {

void attention_backward(const AttentionGradients& gradients, const AttentionInputs& inputs, const AttentionSaved& saved,
                        const AttentionIncoming& incoming, const AttentionOptions& options) {
  BackwardProblem problem = check_backward(gradients, inputs, saved, incoming, options);
  const Backend& backend = backend_for(problem);
  if (!writes_elements(kAttentionGradients, gradients)) return;
  const ReportedCall call("attention_backward", problem, options);
  backend.backward(problem);
  call.end();
}

}  // namespace headgate
