// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "models/evaluate/figure.hpp"

namespace headgate::demo {

/// The figures of runs that differ in their seed alone: mean, least and most of each.
struct Spread {
  std::size_t runs = 0;
  metrics::FigureRow mean, least, most;
};

/// Of one row at least. A figure that a row lacks has none.
Spread spread_of(const std::vector<metrics::FigureRow>& rows);

/// "97%", and "0.4%" where whole per cents would say nothing.
std::string percent(double share);

/// "95% (71% to 100%)"; of one run, or where all are alike, "95%".
std::string percent(const Spread& spread, const metrics::Figure& figure);

}  // namespace headgate::demo
