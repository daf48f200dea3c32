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
  double aim_seconds = 265.0;    ///< that the steps are planned for
  double limit_seconds = 285.0;  ///< that the steps of a later comparison are planned for once an earlier one is done
};

struct TrainingEnd {
  enum class Reason { finished, interrupted, diverged };
  Reason reason = Reason::finished;
  std::string divergence;  ///< which step diverged, and how
};

/// Trains the models of the comparisons, a run a thread and as many at a time as settings.threads says, and prints the
/// comparisons' tables and verdicts. `interrupted` is called after every step and during evaluations, by one thread at
/// a time; true ends the training.
TrainingEnd show_training(const std::vector<Comparison>& comparisons, const DemoBudget& budget,
                          const std::function<bool()>& interrupted);

}  // namespace headgate::demo
