// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace headgate {

/// Settings of the kernel for few queries, by CPU (docs/design/decoding.md). The defaults are for Intel CPUs.
struct CpuTuning {
  /// Distance of prefetches in bytes, and the cache level that prefetches target.
  /// Prefetches into the first level make AMD cores read memory faster. For Intel cores, the second level is better.
  struct PrefetchSettings {
    bool into_first_level = false;
    std::int64_t distance_bytes = 16384;
  };
  /// Prefetch settings. They depend on the number of query rows (queries times heads) that share a row of k or v:
  ///   few: few query rows. Memory bandwidth is the limit.
  ///   many: more query rows, and keys of 32 or 64 bits. Arithmetic takes at least as long as memory accesses.
  ///   many_narrow: more query rows, and keys of fewer bits.
  PrefetchSettings few, many, many_narrow;

  /// Returns the settings for rows of k or v, each of which is multiplied by `rows_against` query rows.
  /// Elements of k and v have `element_bytes` bytes.
  const PrefetchSettings& prefetch_settings(std::int64_t rows_against, std::size_t element_bytes) const {
    if (rows_against < (element_bytes == 1 ? 4 : 8)) return few;
    return element_bytes < sizeof(float) ? many_narrow : many;
  }

  /// Least number of query rows (queries times heads) per key at which scores of bf16 keys use bf16 dot products.
  /// Used on CPUs with fast bf16 dot products. With fewer rows, memory is the limit, and f32 products suffice.
  std::int64_t least_dot_rows = 8;
};

inline CpuTuning tuning_of_cpu() {
#ifdef __x86_64__
  constexpr CpuTuning kZen4{.few = {.into_first_level = true, .distance_bytes = 3072},
                            .many = {},
                            .many_narrow = {.into_first_level = true, .distance_bytes = 8192},
                            .least_dot_rows = 4};
  constexpr CpuTuning::PrefetchSettings kFirstLevel{.into_first_level = true, .distance_bytes = 8192};
  constexpr CpuTuning kAmd{.few = kFirstLevel, .many = kFirstLevel, .many_narrow = kFirstLevel};
  // The name amdfam19h includes Zen 4 and Zen 3. Zen 3 has an equally small first-level cache, but no AVX-512.
  // Zen 3 was not measured.
  if (__builtin_cpu_is("amdfam19h") != 0) return kZen4;
  if (__builtin_cpu_is("amd") != 0) return kAmd;
#endif
  return {};
}

}  // namespace headgate
