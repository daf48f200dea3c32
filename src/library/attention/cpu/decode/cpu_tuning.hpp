// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headgate {

/// Per-CPU tuning of the kernel for few queries (docs/design/decoding.md). The defaults are for Intel CPUs.
struct CpuTuning {
  /// Prefetch distance in bytes and target cache level. AMD cores read memory faster with prefetches into the first
  /// level, Intel cores with prefetches into the second.
  struct Requests {
    bool into_first_level = false;
    std::int64_t ahead_bytes = 16384;
  };
  /// Settings by the number of query rows (queries times heads) that share a row of k or v. `few` applies to few query
  /// rows. `many` (f32) and `many_narrow` (fewer bits) apply if arithmetic takes at least as long as memory.
  Requests few, many, many_narrow;
  /// Least number of query rows (queries times heads) sharing bf16 keys for which scores use bf16 dot products, if
  /// these are fast on the CPU. With fewer rows, dot products would consume keys faster than memory delivers them.
  std::int64_t least_dot_rows = 8;
};

inline CpuTuning tuning_of_cpu() {
#ifdef __x86_64__
  constexpr CpuTuning kZen4{.few = {.into_first_level = true, .ahead_bytes = 3072},
                            .many = {},
                            .many_narrow = {.into_first_level = true, .ahead_bytes = 8192},
                            .least_dot_rows = 4};
  constexpr CpuTuning::Requests kFirstLevel{.into_first_level = true, .ahead_bytes = 8192};
  constexpr CpuTuning kAmd{.few = kFirstLevel, .many = kFirstLevel, .many_narrow = kFirstLevel};
  // Matches Zen 4 and also Zen 3 (not measured), which has an equally small first-level cache and no AVX-512.
  if (__builtin_cpu_is("amdfam19h") != 0) return kZen4;
  if (__builtin_cpu_is("amd") != 0) return kAmd;
#endif
  return {};
}

}  // namespace headgate
