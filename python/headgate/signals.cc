// SPDX-License-Identifier: Apache-2.0
#include "python/headgate/signals.hpp"

namespace headgate::python {

bool SignalPoll::ask() noexcept {
  constexpr std::chrono::milliseconds kInterval(100);
  if (raised_ || !polls_) return raised_;
  if (Clock::now() - last_ < kInterval) return false;
  // In a child of fork() the call computes on a thread that Python does not know.
  polls_ = std::this_thread::get_id() == caller_;
  if (!polls_) return false;
  const nb::gil_scoped_acquire lock;
  raised_ = PyErr_CheckSignals() != 0;  // 0 in other threads than Python's main one
  last_ = Clock::now();
  return raised_;
}

}  // namespace headgate::python
