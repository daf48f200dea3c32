// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

// Plans how many steps the demo trains its comparisons for, so that it ends in time on this machine.

namespace headgate::demo {

/// Describes the time of a comparison. All its models are trained for the same number of steps.
struct ComparisonCost {
  std::int64_t steps = 0;      ///< number wanted
  std::int64_t least = 0;      ///< fewest meaningful steps; `steps` if that is less
  double step_seconds = 0.0;   ///< of one step of every model, one model after the other
  double fixed_seconds = 0.0;  ///< independent of the number of steps
};

/// Returns the steps of each comparison: the wanted ones if all fit into `seconds`; otherwise the same fraction of them
/// for every comparison, but at least the least number of each, even if that takes longer.
std::vector<std::int64_t> plan_steps(const std::vector<ComparisonCost>& comparisons, double seconds);

double planned_seconds(const ComparisonCost& comparison, std::int64_t steps);

/// Returns the time left of a plan of `planned` seconds, of which `done` are done after `elapsed` seconds. Assumes that
/// the rest runs at the same speed.
double seconds_left(double planned, double done, double elapsed);

}  // namespace headgate::demo
