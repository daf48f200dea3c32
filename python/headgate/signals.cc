// SPDX-License-Identifier: Apache-2.0
#include "python/headgate/signals.hpp"

namespace headgate::python {
namespace {

bool in_main_thread() {
  const nb::module_ threading = nb::module_::import_("threading");
  return threading.attr("main_thread")().is(threading.attr("current_thread")());
}

}  // namespace

bool SignalPoll::ask() noexcept {
  constexpr std::chrono::milliseconds kInterval(100);
  if (raised_ || !polls_) return raised_;
  if (Clock::now() - last_ < kInterval) return false;
  // In a child of fork() the call computes on a thread that Python does not know.
  polls_ = std::this_thread::get_id() == caller_;
  if (!polls_) return false;
  const nb::gil_scoped_acquire lock;
  try {
    polls_ = in_main_thread();
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("headgate");
    polls_ = false;
  }
  raised_ = polls_ && PyErr_CheckSignals() != 0;
  last_ = Clock::now();
  return raised_;
}

}  // namespace headgate::python
