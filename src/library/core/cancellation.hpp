// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "headgate/error.hpp"
#include "headgate/runtime.hpp"

namespace headgate {

/// Returns the context's callback, or null if there is none: an empty std::function is none.
inline const std::function<bool()>* cancellation_callback(const ExecutionContext& context) {
  return context.cancelled != nullptr && *context.cancelled ? context.cancelled : nullptr;
}

/// Throws Cancelled if the context's callback returns true. Must not be called in a parallel region.
inline void throw_if_cancelled(const ExecutionContext& context) {
  const auto* callback = cancellation_callback(context);
  if (callback != nullptr && (*callback)()) throw Cancelled();
}

/// Cancels a call whose threads process tasks. Every thread calls requested() before a task, and skips the task if the
/// result is true. Only the calling thread runs the callback. The constructor runs it too, because other threads may
/// take all tasks. Without a callback, requested() costs one comparison.
class Cancellation {
 public:
  explicit Cancellation(const ExecutionContext& context) : callback_(cancellation_callback(context)) { requested(); }
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  /// Returns whether to skip the remaining tasks. After returning true once, always returns true.
  bool requested() {
    if (callback_ == nullptr) return false;
    if (std::this_thread::get_id() == caller_ && !seen() && (*callback_)())
      requested_.store(true, std::memory_order_relaxed);
    return seen();
  }

  /// Returns whether to skip task n and all later ones. Runs the callback only before every `interval`-th task, because
  /// running it before each short task would take considerable time.
  bool requested(std::int64_t n, std::int64_t interval) { return n % interval == 0 ? requested() : seen(); }

  /// Returns whether requested() has returned true in any thread. Does not run the callback.
  bool seen() const { return requested_.load(std::memory_order_relaxed); }

  /// Throws Cancelled if tasks may have been skipped. Must be called after the parallel region.
  void throw_if_seen() const {
    if (seen()) throw Cancelled();
  }

 private:
  const std::function<bool()>* callback_;
  std::thread::id caller_ = std::this_thread::get_id();
  std::atomic<bool> requested_{false};
};

}  // namespace headgate
