// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "library/attention/backend.hpp"
#include "library/attention/call_report.hpp"
#include "library/core/attention_tensors.hpp"

namespace headgate {

void attention_backward(const AttentionGradients& gradients, const AttentionInputs& inputs, const AttentionSaved& saved,
                        const AttentionIncoming& incoming, const AttentionOptions& options) {
  BackwardProblem problem = check_backward(gradients, inputs, saved, incoming, options);
  const Backend& backend = backend_for(problem);
  // Returns early if every gradient is absent or empty.
  // Kernels loop over all B batches, and B may be huge in empty tensors.
  const bool writes = std::any_of(kAttentionGradients.begin(), kAttentionGradients.end(),
                                  [&](const auto& row) { return (gradients.*row.member).numel() > 0; });
  if (!writes) return;
  const ReportedCall call("attention_backward", problem, options);
  backend.backward(problem);
  call.end();
}

}  // namespace headgate
