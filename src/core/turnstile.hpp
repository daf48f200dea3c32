// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace headgate {

/// Lets threads pass slot by slot in a fixed order, so that sums that several threads add to have one order and hence
/// one value. A visit with turn n waits until turn n − 1 has left. Whoever takes visits must take lower turns no later
/// than higher ones; then the wait always ends.
class Turnstile {
 public:
  /// `slots`: counters, zero before the first visit.
  explicit Turnstile(std::uint32_t* slots) : slots_(slots) {}

  void enter(std::size_t slot, std::uint32_t turn) const {
    for (int spins = 0; std::atomic_ref(slots_[slot]).load(std::memory_order_acquire) != turn; ++spins) {
      if (spins < kSpins) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
      } else {
        sched_yield();
      }
    }
  }

  void leave(std::size_t slot, std::uint32_t turn) const {
    std::atomic_ref(slots_[slot]).store(turn + 1, std::memory_order_release);
  }

 private:
  /// 6 µs on Zen 4, where a pause takes 24 ns: a third of what the backward pass needs for the dq of one tile (96 × 192
  /// × 64 multiply-adds), which is what is waited for; then yields, 0.5 µs each
  /// (docs/notes/2026-11-21-constants.md).
  static constexpr int kSpins = 256;
  std::uint32_t* slots_;
};

}  // namespace headgate
