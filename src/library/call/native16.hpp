// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Declares how Precision::native16 chooses between the CPU's bf16 instructions.

namespace headgate {

/// Instruction sets that multiply bf16 numbers, slowest first.
///   dots    AVX-512 BF16 dot products;
///   tiles   AMX for products, and AVX-512 BF16 for conversions.
enum class Native16Unit { none, dots, tiles };

/// Returns the unit that multiplies bf16 numbers on a vector target:
///
///   - AVX-512: the unit that set_native16_products() selected. Without a selection, the CPU's fastest unit, or none if
///     f32 products are faster.
///   - other targets: none
///
/// The first call asks the operating system for permission to use AMX tiles, once per process.
Native16Unit native16_unit(std::int64_t target);

/// Returns whether the program selected the unit with set_native16_products().
bool native16_unit_is_selected();

}  // namespace headgate
