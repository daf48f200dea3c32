// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <functional>
#include <thread>

#include "headgate/error.hpp"
#include "headgate/runtime.hpp"
#include "python/headgate/keywords.hpp"

// Handles signals such as Ctrl-C during a call. Python's main thread pauses the computation to run the handlers.

namespace headgate::python {

namespace nb = nanobind;

/// Polls for signals while a call runs without the interpreter's lock. The computation polls through
/// ExecutionContext::cancelled.
///
/// At most every 0.1 s, a poll takes the lock and runs the handlers of pending signals. Calls of less than 0.1 s never
/// take the lock. If a handler raises an exception, the exception stays set, and the call is cancelled.
class SignalPoll {
 public:
  SignalPoll() = default;
  SignalPoll(const SignalPoll&) = delete;
  SignalPoll& operator=(const SignalPoll&) = delete;

  const std::function<bool()>* callback() const { return &callback_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool ask() noexcept;

  std::thread::id caller_ = std::this_thread::get_id();
  Clock::time_point last_ = Clock::now();
  bool polls_ = true, raised_ = false;
  const std::function<bool()> callback_ = [this] { return ask(); };
};

/// Runs call() without the interpreter's lock and returns its result. call() must check `context` for cancellation. If
/// a signal handler raises an exception, such as KeyboardInterrupt, throws that exception. The call's outputs are then
/// unspecified.
template <class Call>
auto interruptible(const Keywords& keywords, ExecutionContext& context, const Call& call) {
  SignalPoll poll;
  context.cancelled = poll.callback();
  try {
    const nb::gil_scoped_release released;
    return call();
  } catch (const Cancelled&) {
    nb::python_error raised;  // takes the handler's pending exception, since count_written() calls Python
    keywords.count_written();
    throw raised;  // NOLINT(misc-throw-by-value-catch-by-reference)
  }
}

}  // namespace headgate::python
