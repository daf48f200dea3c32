// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Disables Highway targets, so that every version of Highway compiles the same list of targets. Disables:
//   - targets that are no faster here than the next lower target
//   - all SVE targets: the size of SVE vectors is unknown at compile time, but the kernels use arrays of vectors.
// CPUs with SVE run the NEON code.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS                                                                              \
  (HWY_SSE2 | HWY_SSSE3 | HWY_AVX3_DL | HWY_AVX3_ZEN4 | HWY_AVX3_SPR | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | \
   HWY_SVE2_128 | HWY_NEON_WITHOUT_AES | HWY_NEON_BF16)
#endif

#include "hwy/detect_targets.h"

// Defines targets that are missing in Highway 1.0.
#ifndef HWY_SSE2
#define HWY_SSE2 0
#endif
#ifndef HWY_AVX3_ZEN4
#define HWY_AVX3_ZEN4 0
#endif
#ifndef HWY_AVX3_SPR
#define HWY_AVX3_SPR 0
#endif
#ifndef HWY_NEON_WITHOUT_AES
#define HWY_NEON_WITHOUT_AES 0
#endif
#ifndef HWY_NEON_BF16
#define HWY_NEON_BF16 0
#endif

namespace headgate {

struct TargetRow {
  const char* name;
  std::int64_t bit;
};

/// All targets of this library, best first.
inline constexpr TargetRow kTargetRows[] = {{"avx3", HWY_AVX3}, {"avx2", HWY_AVX2},     {"sse4", HWY_SSE4},
                                            {"neon", HWY_NEON}, {"emu128", HWY_EMU128}, {"scalar", HWY_SCALAR}};

constexpr bool has_target_row(std::int64_t bit) {
  for (const TargetRow& row : kTargetRows) {
    if (row.bit == bit) return true;
  }
  return false;
}
static_assert(has_target_row(HWY_STATIC_TARGET), "the target that this compiler aims at has no row in kTargetRows");

}  // namespace headgate
