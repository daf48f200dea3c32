// SPDX-License-Identifier: Apache-2.0
#include "headgate/statistics.hpp"

#include "library/attention/backend.hpp"

namespace headgate {

void attention_statistics(const AttentionStatistics& outputs, const AttentionInputs& inputs, const ConstTensorView& lse,
                          const StatisticsSelection& selection, const AttentionOptions& options) {
  const StatisticsProblem problem = check_statistics(outputs, inputs, lse, selection, options);
  backend_for(problem).statistics(problem);
}

}  // namespace headgate
