// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <string>

// Runs tests in a process made by fork() without exec.

namespace headgate::testing {

/// LLVM's thread sanitizer ends a child of a process with threads as soon as it starts one.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool kCanFork = false;
#else
inline constexpr bool kCanFork = true;
#endif
#else
inline constexpr bool kCanFork = true;
#endif

/// Runs `check` in a forked child. Returns "passed", "failed" if it returns false, or how the child ended. Stops the
/// child after two minutes, so that a hanging child is a failure.
template <class Check>
std::string in_forked_child(const Check& check) {
  constexpr unsigned kLimit_s = 120;
  const pid_t child = fork();
  if (child < 0) return "fork failed";
  if (child == 0) {
    alarm(kLimit_s);
    _exit(check() ? 0 : 1);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) return "waitpid failed";
  if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "passed" : "failed";
}

}  // namespace headgate::testing
