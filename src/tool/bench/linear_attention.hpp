// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tool/bench/cases.hpp"

namespace headgate::bench {

/// Returns the cases of linear attention:
/// - forward and backward passes with 16 heads and with one head
/// - passes with per-feature decay
/// - the statistic `reach`
/// - decoding one token at a time
std::vector<BenchGroup> linear_attention_groups(int threads);

}  // namespace headgate::bench
