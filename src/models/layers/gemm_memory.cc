// SPDX-License-Identifier: Apache-2.0
// Checks that memory for matrix products is available. The libraries crash or hang if the system refuses it.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <mutex>

#include "library/core/check.hpp"
#include "models/layers/gemm_parts.hpp"

namespace headgate::layers {
namespace {

bool can_map(std::uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory != MAP_FAILED && munmap(memory, bytes) == 0;
}

/// Returns the bytes of address space that this process has left under `limit`.
std::uint64_t remaining_bytes(std::uint64_t limit) {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return limit - std::min(limit, pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
}

/// Throws Error if the process cannot map `bytes` more bytes.
void require_space(std::uint64_t bytes, std::int64_t threads) {
  if (can_map(bytes)) return;
  constexpr std::uint64_t kMega = 1000 * 1000;
  rlimit limit{};
  const bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  const std::string of =
      limited ? fmt::format("address space for {} thread{}, and the limit (ulimit -v) leaves {} MB", threads,
                            threads == 1 ? "" : "s", remaining_bytes(limit.rlim_cur) / kMega)
              : fmt::format("memory for {} thread{}, which the system does not give", threads, threads == 1 ? "" : "s");
  throw Error(fmt::format("matrix products need {} MB of {}: {}{}", bytes / kMega + 1, of,
                          limited ? "raise it" : "free some", threads == 1 ? "" : " or use fewer threads"));
}

}  // namespace

void require_products(std::int64_t threads) {
  static std::atomic<std::int64_t> allowed = 0;
  if (threads <= allowed) return;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const std::int64_t more = threads - allowed;
  if (more <= 0) return;
  const GemmMemory needed = gemm_memory();
  constexpr std::uint64_t kStack_bytes = std::uint64_t{8} << 20;  // stack size of a thread that OpenMP may start
  require_space(
      (allowed == 0 ? needed.first_bytes : 0) + static_cast<std::uint64_t>(more) * (needed.thread_bytes + kStack_bytes),
      threads);
  if (!forked_thread()) for_parts({threads, threads}, [](std::int64_t, std::int64_t, std::int64_t) {});
  if (allowed == 0 && !prepare_gemm()) throw std::bad_alloc();
  allowed = threads;
}

}  // namespace headgate::layers
