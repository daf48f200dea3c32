// SPDX-License-Identifier: Apache-2.0
#include "library/attention/backend.hpp"
#include "library/attention/call_report.hpp"

namespace headgate {

void attention_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                       const AttentionOptions& options) {
  ForwardProblem problem = check_forward(outputs, inputs, options);
  const ReportedCall call("attention_forward", problem, options);
  backend_for(problem).forward(problem);
  call.end();
}

}  // namespace headgate
