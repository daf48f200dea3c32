// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tool/bench/cases.hpp"

namespace headgate::bench {

/// Returns the cases of products with matrices in GGUF blocks. One row of x is multiplied in each format (16384 x
/// 4096), bf16 included, and 512 rows in some formats (2048 x 2048).
std::vector<BenchGroup> stored_product_groups();

}  // namespace headgate::bench
