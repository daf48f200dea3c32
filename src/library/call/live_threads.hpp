// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <system_error>
#include <thread>

#include "headgate/runtime.hpp"

namespace headgate {

/// Runs `kernel`, which runs teams of `threads` threads, where they start: in the thread that a fork left, on a new
/// thread, which gets OpenMP threads of its own. Where the system has no thread to give, teams on the thread that a
/// fork left have one thread (startable_threads). Throws what `kernel` does.
template <class Kernel>
void run_on_live_threads(int threads, const Kernel& kernel) {
  if (threads == 1 || !forked_thread()) return kernel();
  std::exception_ptr failure;
  std::thread live;
  try {
    live = std::thread([&] {
      try {
        kernel();
      } catch (...) {
        failure = std::current_exception();
      }
    });
  } catch (const std::system_error&) {
    return kernel();
  }
  live.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace headgate
