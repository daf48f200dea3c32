// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "models/evaluate/metric.hpp"
#include "models/layers/parallel.hpp"

namespace headgate::metrics {

/// Accumulates a result over tokens 0 to `tokens` − 1 in parallel. The template argument Figure is the type of the
/// result, such as a sum. Splits the tokens into ranges, each with its own accumulator `figure`. Calls add(figure, n)
/// for each token n of a range. Then joins the accumulators in order with Figure::join. The ranges do not depend on the
/// number of threads. The result is thus bitwise identical at any number of threads.
template <class Figure, class Add>
Figure over_tokens(std::int64_t tokens, const ExecutionContext& context, const Add& add) {
  constexpr std::int64_t kRanges = 64;
  std::array<Figure, kRanges> figures;
#pragma omp parallel for schedule(static) num_threads(layers::team_size(context))
  for (std::int64_t r = 0; r < kRanges; ++r) {
    for (std::int64_t n = tokens * r / kRanges; n < tokens * (r + 1) / kRanges; ++n) {
      add(figures[static_cast<std::size_t>(r)], n);
    }
  }
  Figure out;
  for (const Figure& figure : figures) out.join(figure);
  return out;
}

/// Accumulates a result of type Figure over the residual stream after a layer, in parallel as over_tokens() does. Calls
/// add(figure, x, position, channel) for each number x of the stream. `position` is the token's position in its
/// sequence.
template <class Figure, typename T, class Add>
Figure over_stream(const LayerSample<T>& sample, const Add& add) {
  const auto& x = sample.view.output;
  return over_tokens<Figure>(x.shape[0], sample.context, [&](Figure& figure, std::int64_t n) {
    for (std::int64_t c = 0; c < x.shape[1]; ++c) add(figure, static_cast<double>(x(n, c)), sample.position(n), c);
  });
}

}  // namespace headgate::metrics
