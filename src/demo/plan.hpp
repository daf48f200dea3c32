// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

// How many steps the demo trains its comparisons for, so that it ends in time on this machine.

namespace headgate::demo {

/// The time that a comparison takes. All its models are trained for the same number of steps.
struct ComparisonCost {
  std::int64_t steps = 0;      ///< that are wanted
  std::int64_t least = 0;      ///< fewer would show nothing; `steps` where that is less
  double step_seconds = 0.0;   ///< of one step of every model, one model after the other
  double fixed_seconds = 0.0;  ///< spent whatever the number of steps is
};

/// The steps of each comparison: those that are wanted if all of them fit into `seconds`; otherwise the same fraction
/// of them for every comparison, but at least the least number of each, even if that takes longer.
std::vector<std::int64_t> plan_steps(const std::vector<ComparisonCost>& comparisons, double seconds);

double planned_seconds(const ComparisonCost& comparison, std::int64_t steps);

/// What is left of a plan of `planned` seconds when `done` of them are done and `elapsed` have passed: the rest is
/// expected to go at the pace of the part that is done.
double seconds_left(double planned, double done, double elapsed);

}  // namespace headgate::demo
