// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tool/bench/cases.hpp"

namespace headgate::bench {

/// Returns the cases of products with matrices in the blocks of a GGUF file: one row of x with each format (16384 x
/// 4096), beside bf16, and 512 rows (2048 x 2048).
std::vector<BenchGroup> stored_product_groups();

}  // namespace headgate::bench
