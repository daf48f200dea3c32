// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tool/demo/comparison.hpp"

namespace headgate::demo {

/// The time of the whole demo, which began at `begin`.
struct DemoBudget {
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  double aim_seconds = 200.0;    ///< time for which steps are planned
  double limit_seconds = 220.0;  ///< time for which steps of later comparisons are planned again, after an earlier one
};

struct TrainingEnd {
  enum class Reason { finished, interrupted, diverged };
  Reason reason = Reason::finished;
  std::string divergence;  ///< which step diverged, and how
};

/// Trains the models of the comparisons, one run a thread, as many at a time as settings.threads says, and prints the
/// comparisons' tables and verdicts. Calls `interrupted` after every step and during evaluations, from one thread at a
/// time; if it returns true, training ends.
TrainingEnd show_training(const std::vector<Comparison>& comparisons, const DemoBudget& budget,
                          const std::function<bool()>& interrupted);

}  // namespace headgate::demo
