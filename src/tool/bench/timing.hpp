// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "library/core/stopwatch.hpp"

namespace headgate::bench {

/// Returns the seconds that run() takes.
template <typename Run>
double seconds_of(const Run& run) {
  const Stopwatch watch;
  run();
  return watch.seconds();
}

/// Returns the median of at least one value; for an even number of values, the mean of the middle two.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

}  // namespace headgate::bench
