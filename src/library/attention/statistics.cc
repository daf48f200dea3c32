// SPDX-License-Identifier: Apache-2.0
#include "headgate/statistics.hpp"

#include "library/attention/backend.hpp"
#include "library/attention/call_report.hpp"
#include "library/core/statistics_outputs.hpp"
#include "library/core/tensor_rows.hpp"

namespace headgate {

void attention_statistics(const AttentionStatistics& outputs, const AttentionInputs& inputs, const ConstTensorView& lse,
                          const StatisticsSelection& selection, const AttentionOptions& options) {
  StatisticsProblem problem = check_statistics(outputs, inputs, lse, selection, options);
  const Backend& backend = backend_for(problem);
  if (!writes_elements(kStatisticsOutputs, outputs)) return;
  const ReportedCall call("attention_statistics", problem, options);
  backend.statistics(problem);
  call.end();
}

}  // namespace headgate
