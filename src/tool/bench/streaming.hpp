// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tool/bench/cases.hpp"

namespace headgate::bench {

/// Returns the cases of memory-bound operations:
/// - the short convolution: B 1, T 2048, C 6144, K 4, SiLU;
/// - the gated norm: B 1, H 16, T 2048, D 128, a SiLU gate.
/// Each runs forward, backward, and forward with one new token.
std::vector<BenchGroup> streaming_groups();

}  // namespace headgate::bench
