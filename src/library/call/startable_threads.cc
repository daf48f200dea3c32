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

/// The teams of a thread that need no probe.
struct Proven {
  /// The size of the last team. GCC's runtime keeps its threads for the next one, and ends those that a smaller team
  /// does not need.
  int last_team = 1;
  /// What the last probe has found, good for kValidity: teams whose sizes alternate are not probed each time.
  int threads = 1;
  Clock::time_point when{};

  static constexpr std::chrono::seconds kValidity{1};
  bool covers(int size) const { return size <= last_team || (size <= threads && Clock::now() - when < kValidity); }
};

thread_local Proven proven;

/// A thread that lives until `end` is unlocked.
struct ProbeThread {
  std::mutex* end = nullptr;
  pthread_t handle{};
  long id = 0;  ///< the system's number of the thread, on Linux
};

void* live_until_end(void* argument) {
  auto* probe = static_cast<ProbeThread*>(argument);
#if defined(__linux__)
  probe->id = syscall(SYS_gettid);
#endif
  const std::lock_guard wait(*probe->end);
  return nullptr;
}

/// Attributes of a stack a little larger than the default. Stacks of threads that have ended stay mapped for later ones
/// that need no more, and LLVM's runtime adds some bytes to the default: under a limit of address space its threads
/// have to get these stacks.
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

/// Waits until the thread no longer counts against the limits of the system, which on Linux it does for a moment after
/// its end.
void wait_for_release([[maybe_unused]] long id) {
#if defined(__linux__)
  constexpr int kMost = 10000;  // another thread may get the same id
  for (int n = 0; n < kMost && syscall(SYS_tgkill, getpid(), id, 0) == 0; ++n) sched_yield();
#endif
}

/// How many of `count` more threads the system gives: creates them, all alive at once, and ends them.
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
  if (!proven.covers(threads)) {
    if (omp_get_active_level() >= omp_get_max_active_levels()) return threads;  // OpenMP creates none
    threads = proven.last_team + more_threads(threads - proven.last_team);
    proven.threads = threads;
    proven.when = Clock::now();
  }
  proven.last_team = threads;
  return threads;
}

}  // namespace headgate
