// SPDX-License-Identifier: Apache-2.0
#include "library/attention/call_report.hpp"

#include "library/core/attention_options.hpp"
#include "library/core/attention_tensors.hpp"
#include "library/core/format.hpp"

namespace headgate {

std::string report_line(const char* operation, const Problem& problem, const AttentionOptions& options,
                        const CallReport& report, double milliseconds) {
  std::string text = call_text(operation, report.backend, problem.context) +
                     arguments_text<kAttentionInputs, kAttentionOptions>(problem.inputs, options);
  for (const CallReport::Group& group : report.groups) {
    text += formatted(", route {} × {}", group.route, group.sequences);
    if (!group.declined.empty()) text += " (" + group.declined + ")";
  }
  if (report.groups.empty()) text += ", nothing to compute";
  return text +
         formatted(", {:.2f} MiB, {:.3f} ms", static_cast<double>(report.memory_bytes) / (1 << 20), milliseconds);
}

void ReportedCall::end() const {
  if (problem_.report == nullptr) return;
  print_report(report_line(operation_, problem_, options_, report_, watch_.milliseconds()));
}

}  // namespace headgate
