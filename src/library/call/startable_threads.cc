// SPDX-License-Identifier: Apache-2.0
#include <omp.h>
#include <pthread.h>
#include <sched.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>

#include "headgate/runtime.hpp"
#include "library/core/team.hpp"

namespace headgate {
namespace {

using Clock = std::chrono::steady_clock;

/// Caches which team sizes the calling thread can start, so that most calls need no probe. A probe starts the threads
/// of a team and ends them at once (more_threads()).
struct ProbeCache {
  /// Size of the last team. GCC's runtime keeps the threads of a team for the next team; a smaller team ends the
  /// threads that it does not need.
  int last_team = 1;
  /// Number of threads that the last probe could start; valid for kValidity. Teams that alternate between large and
  /// small thus need no new probes.
  int threads = 1;
  Clock::time_point when{};

  static constexpr std::chrono::seconds kValidity{1};
  bool covers(int size) const { return size <= last_team || (size <= threads && Clock::now() - when < kValidity); }
};

thread_local ProbeCache probe_cache;

/// A thread of a probe. The thread runs until the mutex `end` is unlocked.
struct ProbeThread {
  std::mutex* end = nullptr;
  pthread_t handle{};
  long id = 0;  ///< thread id that the kernel assigns; on Linux only
};

void* live_until_end(void* argument) {
  auto* probe = static_cast<ProbeThread*>(argument);
#if defined(__linux__)
  probe->id = syscall(SYS_gettid);
#endif
  const std::lock_guard wait(*probe->end);
  return nullptr;
}

/// Gives threads of a probe stacks that are slightly larger than the default. When these threads end, the system keeps
/// their stacks for new threads, such as OpenMP's. LLVM's OpenMP runtime needs slightly more than the default. Reuse
/// matters in a limited address space, which may have no memory for further stacks.
class ProbeAttributes {
 public:
  ProbeAttributes() {
    constexpr std::size_t kMargin_bytes = std::size_t{64} << 10;
    std::size_t stack_bytes = 0;
    pthread_attr_init(&attributes_);
    pthread_attr_getstacksize(&attributes_, &stack_bytes);
    pthread_attr_setstacksize(&attributes_, stack_bytes + kMargin_bytes);
  }
  ~ProbeAttributes() { pthread_attr_destroy(&attributes_); }
  ProbeAttributes(const ProbeAttributes&) = delete;
  ProbeAttributes& operator=(const ProbeAttributes&) = delete;
  const pthread_attr_t* get() const { return &attributes_; }

 private:
  pthread_attr_t attributes_{};
};

/// Waits until the system no longer counts an ended thread against its limits. Linux still counts a thread for a moment
/// after pthread_join().
void wait_for_release([[maybe_unused]] long id) {
#if defined(__linux__)
  constexpr int kMost = 10000;  // limits the loop, because a new thread may get the same id
  for (int n = 0; n < kMost && syscall(SYS_tgkill, getpid(), id, 0) == 0; ++n) sched_yield();
#endif
}

/// Returns how many of `count` additional threads the system can start. Starts threads until `count` of them run or one
/// fails to start. Then ends them.
int more_threads(int count) {
  const std::unique_ptr<ProbeThread[]> probes(new (std::nothrow) ProbeThread[static_cast<std::size_t>(count)]);
  if (probes == nullptr) return 0;
  const ProbeAttributes attributes;
  std::mutex end;
  std::unique_lock hold(end);
  int created = 0;
  for (; created < count; ++created) {
    ProbeThread& probe = probes[static_cast<std::size_t>(created)];
    probe.end = &end;
    if (pthread_create(&probe.handle, attributes.get(), live_until_end, &probe) != 0) break;
  }
  hold.unlock();
  for (int n = 0; n < created; ++n) pthread_join(probes[static_cast<std::size_t>(n)].handle, nullptr);
  for (int n = 0; n < created; ++n) wait_for_release(probes[static_cast<std::size_t>(n)].id);
  return created;
}

}  // namespace

int startable_threads(int threads) {
  if (forked_thread()) return 1;
  if (!probe_cache.covers(threads)) {
    // At this depth of nested parallel regions, OpenMP runs a team with one thread.
    if (omp_get_active_level() >= omp_get_max_active_levels()) return threads;
    threads = probe_cache.last_team + more_threads(threads - probe_cache.last_team);
    probe_cache.threads = threads;
    probe_cache.when = Clock::now();
  }
  probe_cache.last_team = threads;
  return threads;
}

}  // namespace headgate
