// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Declares how Precision::native16 chooses between the CPU's bf16 instructions.

namespace headgate {

/// Instruction sets that multiply bf16 numbers, slowest first.
///   dots    AVX-512 BF16 dot products;
///   tiles   AMX for products, and AVX-512 BF16 for conversions.
enum class Native16Unit { none, dots, tiles };

/// Returns the unit that multiplies bf16 numbers on a vector target; none on targets other than AVX-512.
/// This is the unit set by set_native16_products, otherwise the CPU's best unit if bf16 products are faster there than
/// f32 products.
/// The first call asks the operating system for permission to use AMX tiles, once per process.
Native16Unit native16_unit(std::int64_t target);

/// Returns true if the program chose the unit by set_native16_products.
bool native16_is_by_name();

}  // namespace headgate
