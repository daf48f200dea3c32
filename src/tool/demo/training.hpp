// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tool/demo/comparison.hpp"

namespace headgate::demo {

/// Time budget of the whole demo, which began at `begin`.
struct DemoBudget {
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  double aim_seconds = 200.0;    ///< total time for which all steps are planned at the start
  double limit_seconds = 220.0;  ///< total time for which later comparisons are planned again
};

struct TrainingEnd {
  enum class Reason { finished, interrupted, diverged };
  Reason reason = Reason::finished;
  std::string divergence;  ///< which step diverged, and how; empty if none did
};

/// Trains the models of the comparisons and prints the tables and verdicts. Each run uses one thread, and as many runs
/// as settings.threads are active at once. Calls `interrupted` after every step and during evaluations, from one thread
/// at a time. Training ends if it returns true.
TrainingEnd show_training(const std::vector<Comparison>& comparisons, const DemoBudget& budget,
                          const std::function<bool()>& interrupted);

}  // namespace headgate::demo
