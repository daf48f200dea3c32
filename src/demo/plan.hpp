// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

// How much the demo trains, such that it ends in time on this machine.

namespace headgate::cli {

/// What a story takes. All its models go the same number of steps.
struct StoryCost {
  std::int64_t steps = 0;      ///< wanted
  std::int64_t least = 0;      ///< fewer would show nothing; where `steps` is below it, that counts
  double step_seconds = 0.0;   ///< of a step of each model, one after the other
  double fixed_seconds = 0.0;  ///< whatever the number of steps is
};

/// The steps of each story: as wanted if all of it fits into `seconds`, else cut in the same proportion, down to the
/// least of each, even where that takes longer.
std::vector<std::int64_t> plan_steps(const std::vector<StoryCost>& stories, double seconds);

double planned_seconds(const StoryCost& story, std::int64_t steps);

/// What is left of a plan of `planned` seconds when `done` of them are done and `elapsed` have passed: the rest is
/// expected to go as the part before it did.
double seconds_left(double planned, double done, double elapsed);

}  // namespace headgate::cli
