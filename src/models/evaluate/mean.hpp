// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <optional>

namespace headgate::metrics {

/// Accumulates a sum and its count.
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

/// Accumulates two means: over positions whose token is a trigger, and over the others.
struct MeanByTrigger {
  Mean trigger, other;

  Mean& at(bool is_trigger) { return is_trigger ? trigger : other; }
};

/// Returns |silu(z)|: silu, the output gate of linear attention, may be negative.
inline double silu_magnitude(double z) { return std::abs(z / (1.0 + std::exp(-z))); }

/// Returns the larger of two, or NaN if one is NaN: std::max hides a NaN in one of its arguments.
inline double larger(double a, double b) { return std::isnan(b) || b > a ? b : a; }

/// Returns 1 if the condition on `value` holds, else 0, and NaN for NaN: comparisons with NaN are false.
inline double one_if(bool holds, double value) { return std::isnan(value) ? value : holds ? 1.0 : 0.0; }

}  // namespace headgate::metrics
