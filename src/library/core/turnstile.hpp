// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

namespace headgate {

/// Makes threads add to a shared sum in a fixed order, so that the result is bitwise reproducible. The thread with turn
/// n adds between enter(n) and leave(n). enter(n) waits for leave(n − 1). To avoid deadlock, work with a lower turn
/// must start no later than work with a higher turn.
class Turnstile {
 public:
  /// `next` is the turn that may enter next, initially zero. Each shared sum has its own `next`.
  explicit Turnstile(std::int64_t& next) : next_(next) {}

  void enter(std::int64_t turn) const {
    for (int spins = 0; next_.load(std::memory_order_acquire) != turn; ++spins) {
      if (spins < kSpins) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
      } else {
        sched_yield();
      }
    }
  }

  void leave(std::int64_t turn) const { next_.store(turn + 1, std::memory_order_release); }

 private:
  /// Number of pauses before the first sched_yield(). On Zen 4, a pause takes 24 ns, and this number of pauses 6 µs. A
  /// thread usually waits while another adds dq of one tile (96 × 192 × 64 multiply-adds), which takes 20 µs. A yield
  /// takes 0.5 µs (docs/design/backward.md).
  static constexpr int kSpins = 256;
  std::atomic_ref<std::int64_t> next_;
};

}  // namespace headgate
