// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tool/bench/cases.hpp"

namespace headgate::bench {

/// Whole training steps of decoders with an elementwise sigmoid gate at g1, at about 1M, 10M and 50M parameters; one of
/// them beside its baseline of equal size.
std::vector<BenchGroup> training_groups();

}  // namespace headgate::bench
