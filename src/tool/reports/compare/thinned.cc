// SPDX-License-Identifier: Apache-2.0
#include "tool/reports/compare/thinned.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace headgate::compare {

namespace {

/// Adds to `out` the indices from `begin` to `end` of the lowest and the highest number, ascending. Adds that of the
/// first NaN too if the part then has at most `most` indices.
void add_part(std::vector<std::size_t>& out, const std::vector<double>& values, std::size_t begin, std::size_t end,
              std::size_t most) {
  std::optional<std::size_t> low, high, gap;
  for (std::size_t i = begin; i < end; ++i) {
    if (std::isnan(values[i])) {
      gap = gap.value_or(i);
      continue;
    }
    if (!low || values[i] < values[*low]) low = i;
    if (!high || values[i] >= values[*high]) high = i;
  }
  std::set<std::size_t> kept;
  if (low) kept = {*low, *high};
  if (gap && kept.size() < most) kept.insert(*gap);
  out.insert(out.end(), kept.begin(), kept.end());
}

}  // namespace

std::vector<std::size_t> thinned(const train::Curve& curve, std::size_t most) {
  const std::size_t count = curve.values.size();
  std::vector<std::size_t> out;
  if (count <= most) {
    out.resize(count);
    std::iota(out.begin(), out.end(), std::size_t{0});
    return out;
  }
  const bool has_gaps =
      std::any_of(curve.values.begin() + 1, curve.values.end() - 1, [](double value) { return std::isnan(value); });
  const std::size_t of_part = std::min<std::size_t>(has_gaps ? 3 : 2, most - 2);
  const std::size_t parts = (most - 2) / of_part, inner = count - 2;
  out.push_back(0);
  for (std::size_t part = 0; part < parts; ++part) {
    add_part(out, curve.values, 1 + inner * part / parts, 1 + inner * (part + 1) / parts, of_part);
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
