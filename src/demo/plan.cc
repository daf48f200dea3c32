// SPDX-License-Identifier: Apache-2.0
#include "demo/plan.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace headgate::cli {

namespace {

std::int64_t least_steps(const StoryCost& story) { return std::min(story.least, story.steps); }

std::int64_t scaled_steps(const StoryCost& story, double share) {
  const auto steps = static_cast<std::int64_t>(std::floor(share * static_cast<double>(story.steps)));
  return std::clamp(steps, least_steps(story), story.steps);
}

}  // namespace

double planned_seconds(const StoryCost& story, std::int64_t steps) {
  return story.fixed_seconds + story.step_seconds * static_cast<double>(steps);
}

std::vector<std::int64_t> plan_steps(const std::vector<StoryCost>& stories, double seconds) {
  // A story that its least steps hold up leaves less to the others: as many rounds as there are stories settle that.
  double share = 1.0;
  for (std::size_t round = 0; round < stories.size(); ++round) {
    double rest = seconds;
    double wanted = 0.0;
    for (const StoryCost& story : stories) {
      const double all = story.step_seconds * static_cast<double>(story.steps);
      const bool held_up = share * static_cast<double>(story.steps) < static_cast<double>(least_steps(story));
      rest -= held_up ? planned_seconds(story, least_steps(story)) : story.fixed_seconds;
      wanted += held_up ? 0.0 : all;
    }
    share = wanted > 0.0 ? std::clamp(rest / wanted, 0.0, share) : share;
  }
  std::vector<std::int64_t> steps;
  steps.reserve(stories.size());
  for (const StoryCost& story : stories) steps.push_back(scaled_steps(story, share));
  return steps;
}

double seconds_left(double planned, double done, double elapsed) {
  constexpr double kEnough_s = 1.0;  // of work, to judge the pace by
  const double pace = done < kEnough_s ? 1.0 : elapsed / done;
  return std::max(0.0, planned - done) * pace;
}

}  // namespace headgate::cli
