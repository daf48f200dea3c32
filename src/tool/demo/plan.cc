// SPDX-License-Identifier: Apache-2.0
#include "tool/demo/plan.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace headgate::demo {

namespace {

std::int64_t least_steps(const ComparisonCost& comparison) { return std::min(comparison.least, comparison.steps); }

std::int64_t scaled_steps(const ComparisonCost& comparison, double fraction) {
  const auto steps = static_cast<std::int64_t>(std::floor(fraction * static_cast<double>(comparison.steps)));
  return std::clamp(steps, least_steps(comparison), comparison.steps);
}

}  // namespace

double planned_seconds(const ComparisonCost& comparison, std::int64_t steps) {
  return comparison.fixed_seconds + comparison.step_seconds * static_cast<double>(steps);
}

std::vector<std::int64_t> plan_steps(const std::vector<ComparisonCost>& comparisons, double seconds) {
  // Comparisons that would get fewer steps than their minimum keep the minimum, and the others share the remaining
  // time. This lowers the others' fraction, which may bring another comparison down to its minimum. Each round except
  // the last finds at least one more, so the number of comparisons bounds the number of rounds.
  double fraction = 1.0;
  for (std::size_t round = 0; round < comparisons.size(); ++round) {
    double time = seconds;
    double wanted = 0.0;
    for (const ComparisonCost& comparison : comparisons) {
      const auto steps = static_cast<double>(comparison.steps);
      const bool at_least = fraction * steps < static_cast<double>(least_steps(comparison));
      time -= at_least ? planned_seconds(comparison, least_steps(comparison)) : comparison.fixed_seconds;
      wanted += at_least ? 0.0 : comparison.step_seconds * steps;
    }
    fraction = wanted > 0.0 ? std::clamp(time / wanted, 0.0, fraction) : fraction;
  }
  std::vector<std::int64_t> steps;
  steps.reserve(comparisons.size());
  for (const ComparisonCost& comparison : comparisons) steps.push_back(scaled_steps(comparison, fraction));
  return steps;
}

double seconds_left(double planned, double done, double elapsed) {
  constexpr double kMeasurable_s = 1.0;  // seconds of work after which its speed is known
  const double pace = done < kMeasurable_s ? 1.0 : elapsed / done;
  return std::max(0.0, planned - done) * pace;
}

}  // namespace headgate::demo
