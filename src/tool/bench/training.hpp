// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tool/bench/cases.hpp"

namespace headgate::bench {

/// Returns groups that run whole training steps of decoders with an elementwise sigmoid gate at g1. The models have
/// about 1M, 10M and 50M parameters and run in f32 and in bf16. One of them is compared with its baseline of equal
/// size.
std::vector<BenchGroup> training_groups();

}  // namespace headgate::bench
