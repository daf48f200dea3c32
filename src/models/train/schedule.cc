// SPDX-License-Identifier: Apache-2.0
#include "models/train/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace headgate::train {

double learning_rate(const Schedule& schedule, std::int64_t step) {
  const auto s = static_cast<double>(step);
  const auto warmup = static_cast<double>(schedule.warmup);
  if (step <= schedule.warmup) return schedule.peak * s / warmup;
  const double u = std::min(1.0, (s - warmup) / (static_cast<double>(schedule.steps) - warmup));
  switch (schedule.decay) {
    case Decay::cosine:
      return schedule.peak * (schedule.floor + (1.0 - schedule.floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * u)));
    case Decay::linear: return schedule.peak * (1.0 - (1.0 - schedule.floor) * u);
    case Decay::constant: break;
  }
  return schedule.peak;
}

}  // namespace headgate::train
