// SPDX-License-Identifier: Apache-2.0
#include "headgate/linear_attention.hpp"

#include <string>

#include "library/call/verbose.hpp"
#include "library/core/format.hpp"
#include "library/core/linear_attention_rows.hpp"
#include "library/core/tensor_rows.hpp"
#include "library/core/verbosity.hpp"
#include "library/linear_attention/cpu/kernels.hpp"
#include "library/linear_attention/problem.hpp"

namespace headgate {
namespace {

/// Returns the text with which a report names the kernel of a call. Returns "" if reports are off, or if the call does
/// not permit native16.
template <class Problem>
std::string kernel_text(const Problem& problem) {
  if (!is_verbose() || problem.precision != Precision::native16) return "";
  const char* const reason = declines_native16(problem);
  return reason == nullptr ? ", kernel native16" : formatted(", kernel scan (not native16: {})", reason);
}

}  // namespace

void linear_attention_forward(const LinearAttentionOutputs& outputs, const LinearAttentionInputs& inputs,
                              const LinearAttentionOptions& options) {
  const LinearForwardProblem problem = check_linear_forward(outputs, inputs, options);
  if (!writes_elements(kLinearOutputs, outputs)) return;
  run_on_cpu<kLinearInputs, kLinearOptions>("linear_attention_forward", problem, options, cpu_linear_forward,
                                            kernel_text(problem));
}

void linear_attention_backward(const LinearAttentionGradients& gradients, const LinearAttentionInputs& inputs,
                               const LinearAttentionIncoming& incoming, const LinearAttentionOptions& options) {
  const LinearBackwardProblem problem = check_linear_backward(gradients, inputs, incoming, options);
  if (!writes_elements(kLinearGradients, gradients)) return;
  run_on_cpu<kLinearInputs, kLinearOptions>("linear_attention_backward", problem, options, cpu_linear_backward,
                                            kernel_text(problem));
}

}  // namespace headgate
