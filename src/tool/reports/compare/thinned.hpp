// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "models/train/metrics_reader.hpp"

namespace headgate::compare {

/// The places of at most `most` (at least 4) values of a curve: the first, the last, and between them the lowest and
/// the highest of each of as many parts as fit, so that no spike is lost. Increasing; all of a curve that is short.
std::vector<std::size_t> thinned(const train::Curve& curve, std::size_t most);

/// The place of the lowest number; none where no value is one.
std::optional<std::size_t> lowest(const train::Curve& curve);

/// The last value; none where that is no number.
std::optional<double> last(const train::Curve& curve);

}  // namespace headgate::compare
