// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "headgate/attention.hpp"
#include "library/core/element.hpp"

namespace headgate::reference {

/// Returns whether each query has a sink of its own, (1|B,Hq,T,1). Otherwise the queries of a head share one,
/// (1,1,1,Hq).
inline bool has_query_sinks(const AttentionInputs& in) {
  const Shape& shape = in.sinks.shape;
  return shape[0] != 1 || shape[1] != 1 || shape[2] != 1;
}

/// Returns the index of one sink in contiguous sinks: the sink of query i of head h in batch b.
inline std::int64_t index_of_sink(const AttentionInputs& in, std::int64_t b, std::int64_t h, std::int64_t i) {
  const Shape& shape = in.sinks.shape;
  return has_query_sinks(in) ? ((shape[0] == 1 ? 0 : b) * shape[1] + h) * shape[2] + i : h;
}

/// Returns the sink logit of query i of head h in batch b; −∞ without sinks.
inline double sink_of(const AttentionInputs& in, std::int64_t b, std::int64_t h, std::int64_t i) {
  if (!in.sinks.present()) return -std::numeric_limits<double>::infinity();
  if (!has_query_sinks(in)) return load(in.sinks, 0, 0, 0, h);
  return load(in.sinks, in.sinks.shape[0] == 1 ? 0 : b, h, i, 0);
}

}  // namespace headgate::reference
