// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "models/train/metrics_reader.hpp"

namespace headgate::compare {

/// Selects at most `most` values of a curve for a chart and returns their indices, ascending.
/// Requires `most` ≥ 4.
/// Keeps the first and the last value. Divides the others into (most − 2) / 2 equal parts, or (most − 2) / 3 if any is
/// NaN. Keeps the lowest and the highest number of each part, so that every spike stays visible, and one NaN, so that
/// gaps do. With `most` = 4, keeps the NaN only if the two numbers are one.
std::vector<std::size_t> thinned(const train::Curve& curve, std::size_t most);

/// Returns the index of the lowest value; ignores NaN. Returns nothing if all values are NaN.
std::optional<std::size_t> lowest(const train::Curve& curve);

/// Returns the last value of a curve. Returns nothing if it is NaN.
std::optional<double> last(const train::Curve& curve);

}  // namespace headgate::compare
