// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Precision::native16: products of bf16 numbers in the instructions that a CPU has for them.

namespace headgate {

/// What multiplies bf16 numbers, best last. dots: AVX-512 BF16; tiles: AMX, with the conversions of AVX-512 BF16.
enum class Native16Unit { none, dots, tiles };

/// What calls on a vector target multiply with: the CPU's best unit if it is faster than f32 products, or the one that
/// set_native16_products chose; none on targets other than AVX-512. The first call asks the operating system for the
/// tiles, once for the process.
Native16Unit native16_unit(std::int64_t target);

/// Whether set_native16_products chose the unit.
bool native16_is_by_name();

}  // namespace headgate
