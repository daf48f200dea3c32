// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace headgate {

/// Makes threads add to shared sums in a fixed order, so that the bits of a sum do not depend on which thread is
/// faster. A slot belongs to one sum: enter() with turn n waits until leave() was called with turn n − 1. Every wait
/// ends if the work that has lower turns is begun no later than the work that has higher ones.
class Turnstile {
 public:
  /// `slots`: a counter for each sum, the turn that may enter next; zero at first.
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
