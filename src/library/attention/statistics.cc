// SPDX-License-Identifier: Apache-2.0
#include "headgate/statistics.hpp"

#include "library/attention/backend.hpp"
#include "library/attention/call_report.hpp"

namespace headgate {

void attention_statistics(const AttentionStatistics& outputs, const AttentionInputs& inputs, const ConstTensorView& lse,
                          const StatisticsSelection& selection, const AttentionOptions& options) {
  StatisticsProblem problem = check_statistics(outputs, inputs, lse, selection, options);
  const ReportedCall call("attention_statistics", problem, options);
  backend_for(problem).statistics(problem);
  call.end();
}

}  // namespace headgate
