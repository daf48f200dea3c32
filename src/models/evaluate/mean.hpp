// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <optional>

namespace headgate::metrics {

/// A sum and how many it is of.
struct Mean {
  double sum = 0.0;
  double count = 0.0;

  void add(double value, double weight = 1.0) {
    sum += value;
    count += weight;
  }
  void add(const Mean& other) { add(other.sum, other.count); }
  double value() const { return count > 0.0 ? sum / count : 0.0; }
  std::optional<double> maybe() const { return count > 0.0 ? std::optional(sum / count) : std::nullopt; }
};

/// Means over positions whose token is a trigger, and over the others.
struct MeanByTrigger {
  Mean trigger, other;

  Mean& at(bool is_trigger) { return is_trigger ? trigger : other; }
};

/// The larger of two, NaN where one is: std::max hides a NaN on one side.
inline double larger(double a, double b) { return std::isnan(b) || b > a ? b : a; }

/// 1 or 0 for a share of values below or above a bound; NaN, which compares as neither, for NaN.
inline double one_if(bool holds, double value) { return std::isnan(value) ? value : holds ? 1.0 : 0.0; }

}  // namespace headgate::metrics
