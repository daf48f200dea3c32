// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "headgate/runtime.hpp"
#include "models/layers/parallel.hpp"

namespace headgate::metrics {

/// Joins figures of ranges of tokens. Calls compute(figure, begin, end) for each range in parallel, then joins the
/// figures in order with Figure::join. The ranges do not depend on the number of threads, and so neither do the bits.
template <class Figure, class Compute>
Figure over_token_ranges(std::int64_t tokens, const ExecutionContext& context, const Compute& compute) {
  constexpr std::int64_t kRanges = 64;
  std::array<Figure, kRanges> figures;
#pragma omp parallel for schedule(static) num_threads(layers::team_size(context))
  for (std::int64_t r = 0; r < kRanges; ++r) {
    compute(figures[static_cast<std::size_t>(r)], tokens * r / kRanges, tokens * (r + 1) / kRanges);
  }
  Figure out;
  for (const Figure& figure : figures) out.join(figure);
  return out;
}

}  // namespace headgate::metrics
