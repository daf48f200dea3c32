// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "models/evaluate/figure.hpp"

namespace headgate::demo {

/// Summarises the figures of runs that differ only in their seed: mean, least and largest of each.
struct Spread {
  std::size_t runs = 0;
  metrics::FigureRow mean, least, most;
};

/// Returns the spread of at least one row. A figure that a row lacks has none.
Spread spread_of(const std::vector<metrics::FigureRow>& rows);

/// Returns "95% (71% to 100%)"; "95%" for one run, or if all are equal.
std::string percent(const Spread& spread, const metrics::Figure& figure);

}  // namespace headgate::demo
