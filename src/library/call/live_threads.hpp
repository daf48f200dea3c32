// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <new>
#include <system_error>
#include <thread>

#include "headgate/runtime.hpp"

namespace headgate {

/// Runs `kernel`, which opens parallel regions of `threads` threads, where they come: in the thread that a fork left,
/// on a new thread, which gets OpenMP threads of its own. Throws what `kernel` does, and std::bad_alloc where the
/// system has no thread to give.
template <class Kernel>
void run_on_live_threads(int threads, const Kernel& kernel) {
  if (threads == 1 || !forked_thread()) return kernel();
  std::exception_ptr failure;
  try {
    std::thread([&] {
      try {
        kernel();
      } catch (...) {
        failure = std::current_exception();
      }
    }).join();
  } catch (const std::system_error&) {
    throw std::bad_alloc();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace headgate
