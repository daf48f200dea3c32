// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "models/train/metrics_reader.hpp"

namespace headgate::compare {

/// Returns ascending indices of at most `most` (at least 4) values of a curve. Keeps the first and the last value, and
/// the lowest and the highest of each of (most − 2) / 2 equal parts between them, so that no spike is lost. Returns all
/// indices of a curve with at most `most` values.
std::vector<std::size_t> thinned(const train::Curve& curve, std::size_t most);

/// Returns the index of the lowest value, or nothing if all values are NaN.
std::optional<std::size_t> lowest(const train::Curve& curve);

/// Returns the last value, or nothing if it is NaN.
std::optional<double> last(const train::Curve& curve);

}  // namespace headgate::compare
