// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

// Plans how many steps the demo trains its comparisons for, so that it ends in time on this machine.

namespace headgate::demo {

/// Time that a comparison takes. All its models are trained for the same number of steps.
struct ComparisonCost {
  std::int64_t steps = 0;      ///< number wanted
  std::int64_t least = 0;      ///< fewest meaningful steps, capped at `steps`
  double step_seconds = 0.0;   ///< seconds for one step of every model
  double fixed_seconds = 0.0;  ///< seconds that do not depend on the number of steps
};

/// Returns the number of steps of each comparison. If all wanted steps fit into `seconds`, returns the wanted numbers.
/// Otherwise every comparison gets the same fraction of its steps, but at least its minimum, even if that takes longer.
std::vector<std::int64_t> plan_steps(const std::vector<ComparisonCost>& comparisons, double seconds);

double planned_seconds(const ComparisonCost& comparison, std::int64_t steps);

/// Returns the remaining seconds of a plan of `planned` seconds, of which `done` took `elapsed` seconds. Assumes that
/// the rest runs at the same speed.
double seconds_left(double planned, double done, double elapsed);

}  // namespace headgate::demo
