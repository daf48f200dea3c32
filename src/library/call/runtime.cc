// SPDX-License-Identifier: Apache-2.0
#include "headgate/runtime.hpp"

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "headgate/version.h"
#include "library/core/arena.hpp"
#include "library/core/check.hpp"
#include "library/core/dispatch.hpp"
#include "library/core/format.hpp"

namespace headgate {
namespace {

std::vector<std::string> names_of(std::int64_t mask) {
  std::vector<std::string> names;
  for (const TargetRow& row : kTargetRows) {
    if ((row.bit & mask) != 0) names.emplace_back(row.name);
  }
  return names;
}

/// Targets that every CPU can run, even if Highway's detection does not list them. Excludes the compiler's static
/// target on x86: a program built for a newer CPU may run on an older CPU.
#if HWY_ARCH_X86
constexpr std::int64_t kAlwaysSupported = HWY_EMU128 | HWY_SCALAR;
#else
constexpr std::int64_t kAlwaysSupported = HWY_EMU128 | HWY_SCALAR | HWY_STATIC_TARGET;
#endif

/// Returns the targets that this CPU and build can run. Detects them once: detection takes about 20 µs in a virtual
/// machine, where the hypervisor intercepts CPUID.
std::int64_t supported_mask() {
  static const std::int64_t supported = (hwy::SupportedTargets() | kAlwaysSupported) & HWY_TARGETS;
  return supported;
}

std::int64_t supported_bit(const std::string& name, const char* origin) {
  for (const TargetRow& row : kTargetRows) {
    if (name == row.name && (row.bit & supported_mask()) != 0) return row.bit;
  }
  throw Error(formatted("{} names vector target '{}', but this CPU and build can run: {}", origin, name,
                        comma_separated(names_of(supported_mask()))));
}

std::int64_t default_bit() {
  const char* forced = std::getenv("HEADGATE_ISA");
  if (forced != nullptr && *forced != '\0') return supported_bit(forced, "HEADGATE_ISA");
  for (const TargetRow& row : kTargetRows) {
    if ((row.bit & supported_mask()) != 0) return row.bit;
  }
  throw Error(formatted("this CPU has none of the vector targets that libheadgate was built for: {}",
                        comma_separated(names_of(HWY_TARGETS))));
}

thread_local bool left_by_fork = false;

/// Registers the fork handler when the library is loaded. Registering it in the first call would be too late: the
/// program may fork before that call, after another library has started OpenMP threads.
const bool kForkHandlerFailed = pthread_atfork(nullptr, nullptr, [] { left_by_fork = true; }) != 0;

/// max_threads() returns at least this number.
constexpr int kAlwaysAllowed = 16;

/// Returns min(threads, max_threads()). Skips the system call of max_threads() for up to kAlwaysAllowed threads.
int bounded(int threads) { return threads <= kAlwaysAllowed ? threads : std::min(threads, max_threads()); }

/// Highway's bit of the active vector target; 0 until the first use.
std::atomic<std::int64_t> active_bit{0};

}  // namespace

const char* version() { return HEADGATE_VERSION; }

std::vector<std::string> compiled_targets() { return names_of(HWY_TARGETS); }

std::vector<std::string> supported_targets() { return names_of(supported_mask()); }

std::int64_t active_target_bit() {
  std::int64_t bit = active_bit.load(std::memory_order_acquire);
  if (bit == 0) {
    bit = default_bit();
    active_bit.store(bit, std::memory_order_release);
  }
  return bit;
}

std::string active_target() { return names_of(active_target_bit()).front(); }

void set_target(const std::string& name) {
  active_bit.store(name.empty() ? default_bit() : supported_bit(name, "set_target"), std::memory_order_release);
}

std::int64_t find_target(const std::string& name) { return supported_bit(name, "find_target"); }

int max_threads() {
  constexpr int kPerProcessor = 4;
  return std::max(kAlwaysAllowed, kPerProcessor * omp_get_num_procs());
}

int default_threads() { return bounded(omp_get_max_threads()); }

// If the fork handler could not be registered, treats every thread as one that fork() left in a child process.
bool forked_thread() { return left_by_fork || kForkHandlerFailed; }

ExecutionContext resolved(const ExecutionContext& context) {
  require(context.threads >= 0, "threads is {} but must be at least 0", context.threads);
  const bool one_bit = std::has_single_bit(static_cast<std::uint64_t>(context.target));
  if (context.target != 0 && (!one_bit || (context.target & supported_mask()) == 0)) {
    throw Error(formatted("target is {:#x} but must be the bit of one target that this CPU and build can run: {}",
                          context.target, comma_separated(names_of(supported_mask()))));
  }
  ExecutionContext result = context;
  // Limits the number of threads, because the OpenMP runtime ends the process if it cannot create a thread.
  result.threads = context.threads == 0 ? default_threads() : bounded(context.threads);
  if (context.target == 0) result.target = active_target_bit();
  return result;
}

void release_workspace() { Arena::release(); }

}  // namespace headgate
