// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "headgate/runtime.hpp"
#include "library/core/arena.hpp"

namespace headgate::layers {

/// A split of the range [0,n) into parts for threads. The split depends only on sizes and on the context's number of
/// threads, not on how many threads OpenMP starts.
struct Parts {
  std::int64_t n = 0;
  std::int64_t count = 1;
  std::int64_t grain = 1;  ///< every part begins at a multiple of this number

  std::int64_t begin(std::int64_t part) const {
    if (part >= count) return n;
    const std::int64_t grains = (n + grain - 1) / grain;
    return std::min(n, grains * part / count * grain);
  }
};

/// Smallest number of elementwise operations for which a part gets a thread. On Zen 4, this work takes 1.2 µs
/// (additions in the second-level cache) to 5 µs (in memory). Starting and joining two threads takes up to 0.9 µs
/// (docs/design/training.md).
inline constexpr std::int64_t kMinimumWork = 16384;

/// Minimum distance, in elements, between writes of two threads that avoids false sharing. The distance covers two
/// cache lines, because CPUs fetch the adjacent line too.
template <typename T>
inline constexpr std::int64_t kFalseSharingElements = Block::kAlign_bytes / sizeof(T);

/// Splits [0,n) into parts for threads. Each of the n items costs `work` elementwise operations.
inline Parts parts_of(const ExecutionContext& context, std::int64_t n, std::int64_t work, std::int64_t grain = 1) {
  const std::int64_t by_work = n * std::max<std::int64_t>(work, 1) / kMinimumWork;
  const std::int64_t by_grain = (n + grain - 1) / grain;
  const std::int64_t threads = omp_in_parallel() != 0 ? 1 : context.threads;
  return {n, std::max<std::int64_t>(1, std::min({threads, by_work, by_grain})), grain};
}

/// Returns the number of threads for a parallel region. It is context.threads, or 1 in a thread of a forked child
/// process.
inline int team_size(const ExecutionContext& context) { return forked_thread() ? 1 : context.threads; }

/// Calls body(part, begin, end) for every part, one part per thread. In a thread of a forked child process, runs the
/// parts one after another. body must not throw.
template <class Body>
void for_parts(const Parts& parts, const Body& body) {
  if (parts.count == 1 || forked_thread()) {
    for (std::int64_t part = 0; part < parts.count; ++part) body(part, parts.begin(part), parts.begin(part + 1));
    return;
  }
#pragma omp parallel num_threads(static_cast <int>(parts.count)) default(none) shared(parts, body)
  {
    // OpenMP may start fewer threads than requested, so a thread may take several parts.
    for (std::int64_t part = omp_get_thread_num(); part < parts.count; part += omp_get_num_threads()) {
      body(part, parts.begin(part), parts.begin(part + 1));
    }
  }
}

/// Returns scratch memory of `count` elements. It belongs to the calling thread and is valid until the thread's next
/// call of scratch<T>().
template <typename T>
T* scratch(std::int64_t count) {
  thread_local Block block;
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
  if (block.bytes() < bytes) block = Block{bytes};
  return reinterpret_cast<T*>(block.data());
}

}  // namespace headgate::layers
