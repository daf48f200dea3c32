// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "headgate/error.hpp"
#include "headgate/runtime.hpp"

namespace headgate {

/// Throws Cancelled if the context's caller no longer wants the result. Not for parallel regions.
inline void throw_if_cancelled(const ExecutionContext& context) {
  if (context.cancelled != nullptr && (*context.cancelled)()) throw Cancelled();
}

/// Cancellation of a call whose threads share its work as tasks. Each thread asks before a task, and skips it on true;
/// the thread that made the call asks the caller on behalf of all. It asks once at construction, since the other
/// threads may take every task. Without a callback in the context a question costs one comparison.
class Cancellation {
 public:
  explicit Cancellation(const ExecutionContext& context) : callback_(context.cancelled) { requested(); }
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  /// Whether the remaining tasks are to be skipped. Once true, it stays so.
  bool requested() {
    if (callback_ == nullptr) return false;
    if (std::this_thread::get_id() == caller_ && !seen() && (*callback_)())
      requested_.store(true, std::memory_order_relaxed);
    return seen();
  }

  /// The same for task n of many short ones. Asks the caller only before every `interval`-th task, since the callback
  /// may take a share of a task's time.
  bool requested(std::int64_t n, std::int64_t interval) { return n % interval == 0 ? requested() : seen(); }

  /// What requested() has returned to any thread, without asking the caller anew.
  bool seen() const { return requested_.load(std::memory_order_relaxed); }

  /// Throws Cancelled if tasks may have been skipped. Call it after the parallel region.
  void throw_if_seen() const {
    if (seen()) throw Cancelled();
  }

 private:
  const std::function<bool()>* callback_;
  std::thread::id caller_ = std::this_thread::get_id();
  std::atomic<bool> requested_{false};
};

}  // namespace headgate
