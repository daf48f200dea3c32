// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "models/evaluate/figure.hpp"

namespace headgate::demo {

/// Summarises runs that differ only in their seed: the mean, smallest and largest value of each figure.
struct Spread {
  std::size_t runs = 0;
  metrics::FigureRow mean, least, most;
};

/// Returns the spread of each figure (named metric value) over the runs `rows`. Requires at least one run.
/// Leaves out figures that any run lacks.
Spread spread_of(const std::vector<metrics::FigureRow>& rows);

/// Returns the mean and the range as "95% (71% to 100%)", or only "95%" if least and most are the same.
std::string percent(const Spread& spread, const metrics::Figure& figure);

}  // namespace headgate::demo
