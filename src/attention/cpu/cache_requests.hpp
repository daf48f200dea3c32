// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headgate {

/// Into which level of the cache rows to come are asked for, and how long before their use. AMD's cores read memory
/// faster by requests into the first level, Intel's by requests into the second (docs/notes/2026-11-23-decoding.md).
struct CacheRequests {
  bool into_first_level = false;
  std::int64_t ahead_bytes = 16384;
};

inline CacheRequests requests_of_cpu() {
#ifdef __x86_64__
  if (__builtin_cpu_is("amd") != 0) return {.into_first_level = true, .ahead_bytes = 8192};
#endif
  return {};
}

}  // namespace headgate
