// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tool/bench/cases.hpp"

namespace headgate::bench {

/// Returns the cases of products x wᵀ where w is stored in GGUF blocks.
/// All formats, bf16 included, run with one row of x and a 16384 x 4096 matrix.
/// Some formats also run with 512 rows of x and a 2048 x 2048 matrix.
std::vector<BenchGroup> stored_product_groups();

}  // namespace headgate::bench
