// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "library/attention/problem.hpp"

// Declares Backend, the interface of an implementation of attention.
// The public functions check their arguments, then call the backend that choose_backend() returns.

namespace headgate {

struct Backend {
  const char* name;
  /// Returns null if this backend can compute the problem.
  /// Otherwise returns the reason. Error messages print the reason after "backend NAME: ".
  const char* (*declines)(const Problem& problem);
  // `forward`, `backward` and `statistics` compute a call. They throw only std::bad_alloc and Cancelled.
  // They throw std::bad_alloc before they write any output.
  void (*forward)(const ForwardProblem& problem);
  void (*backward)(const BackwardProblem& problem);
  void (*statistics)(const StatisticsProblem& problem);
};

/// The CPU backend (src/library/attention/cpu). It can compute every problem.
extern const Backend kCpuBackend;

/// Returns all backends of this build, best first. The last backend can compute every problem.
std::span<const Backend* const> backends();

/// Returns the backend for the problem, which is the first of these that exists:
///   1. problem.context.backend, unless null;
///   2. `forced`, unless null;
///   3. the first backend in `list` that does not decline.
/// Throws Error with the reasons if no candidate can compute the problem.
const Backend& choose_backend(std::span<const Backend* const> list, const Backend* forced, const Problem& problem);

/// Calls choose_backend() with this build's backends. Passes the backend that set_backend() selected, or null.
const Backend& backend_for(const Problem& problem);

}  // namespace headgate
