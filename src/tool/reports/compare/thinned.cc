// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/compare/thinned.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace headgate::compare {

namespace {

/// Compares two numbers for ascending order, with NaN before all others.
bool before(double a, double b) { return std::isnan(a) ? !std::isnan(b) : a < b; }

}  // namespace

std::vector<std::size_t> thinned(const train::Curve& curve, std::size_t most) {
  const std::size_t count = curve.values.size();
  std::vector<std::size_t> out;
  if (count <= most) {
    out.resize(count);
    std::iota(out.begin(), out.end(), std::size_t{0});
    return out;
  }
  const std::size_t parts = (most - 2) / 2, inner = count - 2;
  out.push_back(0);
  for (std::size_t part = 0; part < parts; ++part) {
    const auto begin = curve.values.begin() + static_cast<std::ptrdiff_t>(1 + inner * part / parts);
    const auto end = curve.values.begin() + static_cast<std::ptrdiff_t>(1 + inner * (part + 1) / parts);
    const auto [low, high] = std::minmax_element(begin, end, before);
    const auto first = static_cast<std::size_t>(std::min(low, high) - curve.values.begin());
    const auto second = static_cast<std::size_t>(std::max(low, high) - curve.values.begin());
    out.push_back(first);
    if (second != first) out.push_back(second);
  }
  out.push_back(count - 1);
  return out;
}

std::optional<std::size_t> lowest(const train::Curve& curve) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < curve.values.size(); ++i) {
    if (!std::isnan(curve.values[i]) && (!best || curve.values[i] < curve.values[*best])) best = i;
  }
  return best;
}

std::optional<double> last(const train::Curve& curve) {
  const double value = curve.values.back();
  return std::isnan(value) ? std::nullopt : std::optional(value);
}

}  // namespace headgate::compare
