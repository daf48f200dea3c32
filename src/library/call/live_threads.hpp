// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <system_error>
#include <thread>

#include "headgate/runtime.hpp"

namespace headgate {

/// Runs `kernel`, which starts teams of `threads` threads. Usually runs `kernel` on the calling thread.
/// OpenMP cannot start a team of several threads in the thread that fork() left in a child process. In such a thread,
/// runs `kernel` on a new thread. If the system cannot start the new thread, runs `kernel` on the calling thread;
/// startable_threads() then limits teams to one thread. Rethrows exceptions of `kernel`.
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
