// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "library/attention/problem.hpp"

// The implementations of the operation. The public functions check their arguments and hand them to the first
// implementation that can compute the problem.

namespace headgate {

struct Backend {
  const char* name;
  /// Null where this backend can compute the problem; else why not, to follow "backend NAME: ".
  const char* (*declines)(const Problem& problem);
  // They throw nothing but std::bad_alloc, before any output is written, and Cancelled.
  void (*forward)(const ForwardProblem& problem);
  void (*backward)(const BackwardProblem& problem);
  void (*statistics)(const StatisticsProblem& problem);
};

/// Kernels for CPUs (src/library/attention/cpu). Declines nothing.
extern const Backend kCpuBackend;

/// All of this build, best first; the last declines nothing.
std::span<const Backend* const> backends();

/// The backend that the problem's context names; without one `forced`, and without that the first of the list that does
/// not decline. Throws Error with the reasons where there is none.
const Backend& choose_backend(std::span<const Backend* const> list, const Backend* forced, const Problem& problem);

/// choose_backend from this build's, where set_backend may have forced one.
const Backend& backend_for(const Problem& problem);

}  // namespace headgate
