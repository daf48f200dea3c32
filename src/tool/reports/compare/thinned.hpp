// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "models/train/metrics_reader.hpp"

namespace headgate::compare {

/// Returns the indices of at most `most` (at least 4) values of a curve: the first, the last, and between them the
/// lowest and the highest of each of as many parts as fit, so that no spike is lost. Ascending; all indices of a short
/// curve.
std::vector<std::size_t> thinned(const train::Curve& curve, std::size_t most);

/// Returns the index of the lowest number; none if no value is a number.
std::optional<std::size_t> lowest(const train::Curve& curve);

/// Returns the last value; none if it is NaN.
std::optional<double> last(const train::Curve& curve);

}  // namespace headgate::compare
