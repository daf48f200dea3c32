// SPDX-License-Identifier: Apache-2.0
#include "verify/gate_threshold.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "library/core/element.hpp"
#include "verify/oracle/oracle.hpp"

namespace headgate::verify {
namespace {

/// Returns a bound on the rounding error of a gate value g = g(z). The error is at most 8 + 2|z| unit roundoffs of f32,
/// and |z| is below 90 unless g underflows.
double margin(double g) { return 1e-4 * g + 1e-30; }

/// Returns the largest |g| of each row, sorted in ascending order.
std::vector<double> largest_gates(const ConstTensorView& gate, GateFn fn) {
  std::vector<double> largest;
  const Shape& n = gate.shape;
  for (std::int64_t b = 0; b < n[0]; ++b) {
    for (std::int64_t h = 0; h < n[1]; ++h) {
      for (std::int64_t i = 0; i < n[2]; ++i) {
        double g = 0.0;
        for (std::int64_t d = 0; d < n[3]; ++d) {
          g = std::max(g, std::abs(reference::gate_value(fn, load(gate, b, h, i, d)).value));
        }
        largest.push_back(g);
      }
    }
  }
  std::sort(largest.begin(), largest.end());
  return largest;
}

}  // namespace

double threshold_that_closes(double share, const ConstTensorView& gate, GateFn fn) {
  const std::vector<double> largest = largest_gates(gate, fn);
  const auto rows = static_cast<std::ptrdiff_t>(largest.size());
  const auto wanted = static_cast<std::ptrdiff_t>(std::lround(share * static_cast<double>(rows)));
  // Returns a threshold that closes n rows: between largest[n − 1] and largest[n]. Returns 0 if these are too close.
  const auto between = [&](std::ptrdiff_t n) {
    const double low = n == 0 ? 0.0 : largest[n - 1] + margin(largest[n - 1]);
    const double high = n == rows ? 2.0 * low + 1.0 : largest[n] - margin(largest[n]);
    return low < high ? 0.5 * (low + high) : 0.0;
  };
  for (std::ptrdiff_t away = 0; away <= rows; ++away) {
    for (const std::ptrdiff_t n : {wanted - away, wanted + away}) {
      if (n < 0 || n > rows) continue;
      if (const double threshold = between(n); threshold > 0.0) return threshold;
    }
  }
  return 1.0;  // no rows
}

}  // namespace headgate::verify
