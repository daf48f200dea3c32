// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

namespace headgate {

/// Makes threads add to a shared sum in a fixed order, so that its bits do not depend on which thread is faster:
/// enter(n) waits until leave(n − 1) was called. Every wait ends if the work that has lower turns is begun no later
/// than the work that has higher ones.
class Turnstile {
 public:
  /// `next`: the turn that may enter next, zero at first; the sum's own.
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
  /// 6 µs on Zen 4, where a pause takes 24 ns: a third of what the backward pass needs for the dq of one tile (96 × 192
  /// × 64 multiply-adds), which is what is waited for; then yields, 0.5 µs each
  /// (docs/design/backward.md).
  static constexpr int kSpins = 256;
  std::atomic_ref<std::int64_t> next_;
};

}  // namespace headgate
