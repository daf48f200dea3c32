// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "models/train/metrics_reader.hpp"

namespace headgate::compare {

/// Selects at most `most` values of a curve for a chart and returns their indices, ascending.
/// Requires `most` ≥ 4.
/// Keeps the first and the last value. Divides the others into (most − 2) / 2 equal parts.
/// Keeps the lowest and the highest value of each part, so that every spike stays visible.
std::vector<std::size_t> thinned(const train::Curve& curve, std::size_t most);

/// Returns the index of the lowest value; ignores NaN. Returns nothing if all values are NaN.
std::optional<std::size_t> lowest(const train::Curve& curve);

/// Returns the last value of a curve. Returns nothing if it is NaN.
std::optional<double> last(const train::Curve& curve);

}  // namespace headgate::compare
