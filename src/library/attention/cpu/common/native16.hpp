// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Precision::native16 multiplies bf16 numbers with the CPU's bf16 instructions.

namespace headgate {

/// Instructions that multiply bf16 numbers, slowest first. dots: AVX-512 BF16; tiles: AMX, with AVX-512 BF16 for
/// conversions.
enum class Native16Unit { none, dots, tiles };

/// Returns the unit that multiplies bf16 on a vector target: the one set by set_native16_products, else the CPU's best
/// unit if faster than f32 products. Returns none on targets other than AVX-512. The first call requests permission for
/// AMX tiles from the operating system, once per process.
Native16Unit native16_unit(std::int64_t target);

/// Returns true if set_native16_products chose the unit.
bool native16_is_by_name();

}  // namespace headgate
