// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

// HEADGATE_TEST_RUNS=N in the environment limits tests of many problems to about N of them. Slow builds set it.

namespace headgate {

inline std::optional<std::size_t> test_runs() {
  const char* runs = std::getenv("HEADGATE_TEST_RUNS");
  if (runs == nullptr) return std::nullopt;
  return static_cast<std::size_t>(std::stoull(runs));
}

/// Returns all of `items`, or as many as HEADGATE_TEST_RUNS says, evenly spread.
template <class T>
std::vector<T> items_to_test(const std::vector<T>& items) {
  const std::size_t count = std::clamp<std::size_t>(test_runs().value_or(items.size()), 1, items.size());
  std::vector<T> chosen;
  for (std::size_t n = 0; n < count; ++n) chosen.push_back(items[n * items.size() / count]);
  return chosen;
}

}  // namespace headgate
