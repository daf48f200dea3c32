// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "library/core/words.hpp"

namespace headgate::train {

enum class Decay { cosine, linear, constant };

/// A learning-rate schedule: linear warm-up to `peak`, then decay to floor · peak at the last step.
struct Schedule {
  Decay decay = Decay::cosine;
  double peak = 1e-3;
  double floor = 0.1;       ///< learning rate at the last step, as a fraction of `peak`
  std::int64_t warmup = 0;  ///< steps of the warm-up
  std::int64_t steps = 1;   ///< steps of the whole run
};

/// Returns the learning rate of step s = 1 … steps. During the warm-up, s ≤ warmup, it is peak · s / warmup. After the
/// warm-up it depends on the schedule's shape and u = (s − warmup) / (steps − warmup), where 0 < u ≤ 1:
///
/// - cosine: peak · (floor + (1 − floor)·(1 + cos πu)/2)
/// - linear: peak · (1 − (1 − floor)·u)
/// - constant: peak
double learning_rate(const Schedule& schedule, std::int64_t step);

}  // namespace headgate::train

namespace headgate {

template <>
struct Words<train::Decay> {
  static constexpr std::array<Word<train::Decay>, 3> kAll{
      {{train::Decay::cosine, "cosine"}, {train::Decay::linear, "linear"}, {train::Decay::constant, "constant"}}};
};

}  // namespace headgate
