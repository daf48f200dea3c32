// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tool/bench/cases.hpp"

namespace headgate::bench {

/// Returns the cases of linear attention: forward and backward passes of 16 heads and of one head, per-feature decay,
/// and decoding one token at a time.
std::vector<BenchGroup> linear_attention_groups(int threads);

}  // namespace headgate::bench
