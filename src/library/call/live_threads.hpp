// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <system_error>
#include <thread>

#include "headgate/runtime.hpp"

namespace headgate {

/// Runs `kernel`, which starts teams of `threads` threads, and rethrows its exceptions. After fork(), the child process
/// has one thread, in which OpenMP cannot start a team of several threads. If this thread makes the call and `threads`
/// is greater than 1, runs `kernel` on a new thread. In all other cases, runs `kernel` on the calling thread. Also uses
/// the calling thread if the system cannot start a new one; startable_threads() then limits teams to one thread.
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
