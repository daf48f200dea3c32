// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "models/evaluate/gate_mean.hpp"
#include "models/evaluate/loss.hpp"
#include "models/train/metrics_record.hpp"
#include "tool/reports/compare/report.hpp"

namespace headgate::compare {

/// Two made-up runs: one of three steps with a gate, and one of two whose records lack evaluations.
inline std::vector<ComparedRun> two_runs() {
  train::RecordedRun gated, plain;
  gated.steps = {1, 2, 3};
  gated.tokens = 96;
  gated.spikes = {2};
  gated.curves = {{&train::kStepLoss, {1, 2, 3}, {5.0, 1.0, 2.0}},
                  {&metrics::kLossNats, {3}, {2.5}},
                  {&metrics::kGateMean, {3}, {0.25}}};
  plain.steps = {1, 2};
  plain.curves = {{&train::kStepLoss, {1, 2}, {5.0, 4.0}}};
  plain.cut_off = true;
  plain.replaced = 7;
  return {{"runs/gated", gated}, {"runs/plain", plain}};
}

}  // namespace headgate::compare
