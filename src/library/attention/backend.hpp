// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "library/attention/problem.hpp"

// Declares the interface of the operation's implementations. The public functions check their arguments, then call the
// first implementation that can compute the problem.

namespace headgate {

struct Backend {
  const char* name;
  /// Returns null if this backend can compute the problem, otherwise the reason for declining, to follow "backend NAME:
  /// ".
  const char* (*declines)(const Problem& problem);
  // The passes throw only std::bad_alloc, before any output is written, and Cancelled.
  void (*forward)(const ForwardProblem& problem);
  void (*backward)(const BackwardProblem& problem);
  void (*statistics)(const StatisticsProblem& problem);
};

/// The kernels for CPUs (src/library/attention/cpu). This backend declines nothing.
extern const Backend kCpuBackend;

/// Returns all backends of this build, best first. The last one declines nothing.
std::span<const Backend* const> backends();

/// Returns the backend named by the problem's context, else `forced` unless null, else the first of `list` that does
/// not decline. Throws Error with the reasons if every candidate declines.
const Backend& choose_backend(std::span<const Backend* const> list, const Backend* forced, const Problem& problem);

/// Calls choose_backend with this build's backends and the one that set_backend forced, if any.
const Backend& backend_for(const Problem& problem);

}  // namespace headgate
