// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <optional>

namespace headgate::metrics {

/// Accumulates a sum and the count of its terms.
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

/// Accumulates two means: one over trigger tokens, whose next token is a copy (data/backcopy.hpp), and one over all
/// other tokens.
struct MeanByTrigger {
  Mean trigger, other;

  Mean& at(bool is_trigger) { return is_trigger ? trigger : other; }
};

/// Returns |silu(z)|. The output gate of linear attention is silu(z), which can be negative.
inline double silu_magnitude(double z) { return std::abs(z / (1.0 + std::exp(-z))); }

/// Returns whether a is larger than b. NaN counts as larger than any number.
inline bool exceeds(double a, double b) { return !std::isnan(b) && !(a <= b); }

/// Returns 1 if `holds`, the result of a comparison of `value`, is true, else 0. Returns NaN if `value` is NaN.
inline double one_if(bool holds, double value) { return std::isnan(value) ? value : holds ? 1.0 : 0.0; }

}  // namespace headgate::metrics
