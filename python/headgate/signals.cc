// SPDX-License-Identifier: Apache-2.0
#include "python/headgate/signals.hpp"

namespace headgate::python {

bool SignalPoll::ask() noexcept {
  constexpr std::chrono::milliseconds kInterval(100);
  if (raised_ || !polls_) return raised_;
  if (Clock::now() - last_ < kInterval) return false;
  // A forked child may run the computation on a thread that Python did not create. Such a thread cannot take the
  // interpreter's lock, so polling stops.
  polls_ = std::this_thread::get_id() == caller_;
  if (!polls_) return false;
  const nb::gil_scoped_acquire lock;
  raised_ = PyErr_CheckSignals() != 0;  // PyErr_CheckSignals() always returns 0 outside Python's main thread
  last_ = Clock::now();
  return raised_;
}

}  // namespace headgate::python
