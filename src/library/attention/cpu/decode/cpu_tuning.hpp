// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headgate {

/// What the kernel for few queries does in one way on some CPUs and in another on others
/// (docs/design/decoding.md). Here: as Intel's.
struct CpuTuning {
  /// How long before their use rows are asked for, and into which level of the cache. AMD's cores read memory faster by
  /// requests into the first level, Intel's by requests into the second.
  struct Requests {
    bool into_first_level = false;
    std::int64_t ahead_bytes = 16384;
  };
  /// Rows in general, and those that so many queries and heads share that arithmetic takes longer than memory, or as
  /// long: of f32, and of fewer bits.
  Requests few, many, many_narrow;
  /// Scores of so many queries and heads that share bf16 keys, or more, are dot products of bf16 where the CPU's are
  /// fast. Of fewer they would use keys faster than memory answers.
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
  // And Zen 3, whose first level is as small, and which has no AVX-512; not measured there.
  if (__builtin_cpu_is("amdfam19h") != 0) return kZen4;
  if (__builtin_cpu_is("amd") != 0) return kAmd;
#endif
  return {};
}

}  // namespace headgate
