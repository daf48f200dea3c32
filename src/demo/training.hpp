// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <vector>

#include "demo/story.hpp"

namespace headgate::cli {

/// From `begin` on, the whole demo.
struct DemoBudget {
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  double aim_seconds = 205.0;    ///< that the steps are planned for
  double limit_seconds = 220.0;  ///< beyond which the second story is cut when the first took longer than planned
};

/// Trains the stories' models, one after the other, and prints their tables and verdicts. A signal ends it after the
/// step at hand. The process's exit status.
int show_training(const std::vector<Story>& stories, const DemoBudget& budget);

}  // namespace headgate::cli
