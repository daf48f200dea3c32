// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "headgate/runtime.hpp"
#include "library/core/arena.hpp"

namespace headgate::layers {

/// How a range is cut among threads. Depends on sizes and on the context's threads alone.
struct Parts {
  std::int64_t n = 0;
  std::int64_t count = 1;
  std::int64_t grain = 1;  ///< inner cuts are multiples of it

  std::int64_t begin(std::int64_t part) const {
    if (part >= count) return n;
    const std::int64_t grains = (n + grain - 1) / grain;
    return std::min(n, grains * part / count * grain);
  }
};

/// Elementwise operations that a part has at least. On Zen 4 they take from 1.2 µs, additions in the second-level
/// cache, to 5 µs from memory, and starting and joining two threads up to 0.9 µs (docs/design/training.md).
inline constexpr std::int64_t kMinimumWork = 16384;

/// Elements after which threads that write share no cache line, nor the pair of them that is fetched at once.
template <typename T>
inline constexpr std::int64_t kApart = Block::kAlign_bytes / sizeof(T);

/// Parts of [0,n), where an item is worth `work` elementwise operations.
inline Parts parts_of(const ExecutionContext& context, std::int64_t n, std::int64_t work, std::int64_t grain = 1) {
  const std::int64_t by_work = n * std::max<std::int64_t>(work, 1) / kMinimumWork;
  const std::int64_t by_grain = (n + grain - 1) / grain;
  const std::int64_t threads = omp_in_parallel() != 0 ? 1 : context.threads;
  return {n, std::max<std::int64_t>(1, std::min({threads, by_work, by_grain})), grain};
}

/// Threads of a parallel region that the calling thread may open: those of the context, but one in the thread that a
/// fork left.
inline int team_size(const ExecutionContext& context) { return forked_thread() ? 1 : context.threads; }

/// body(part, begin, end) for every part, one a thread; in turn in the thread that a fork left. body must not throw.
template <class Body>
void for_parts(const Parts& parts, const Body& body) {
  if (parts.count == 1 || forked_thread()) {
    for (std::int64_t part = 0; part < parts.count; ++part) body(part, parts.begin(part), parts.begin(part + 1));
    return;
  }
#pragma omp parallel num_threads(static_cast <int>(parts.count)) default(none) shared(parts, body)
  {
    // Fewer threads may come than were asked for.
    for (std::int64_t part = omp_get_thread_num(); part < parts.count; part += omp_get_num_threads()) {
      body(part, parts.begin(part), parts.begin(part + 1));
    }
  }
}

/// `count` elements of scratch, kept by the calling thread from call to call. Valid until its next call.
template <typename T>
T* scratch(std::int64_t count) {
  thread_local Block block;
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
  if (block.bytes() < bytes) block = Block{bytes};
  return reinterpret_cast<T*>(block.data());
}

}  // namespace headgate::layers
