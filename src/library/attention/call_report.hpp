// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "library/attention/problem.hpp"
#include "library/call/verbose.hpp"

// Defines the line that HEADGATE_VERBOSE=1 prints for an attention call (call/verbose.hpp).

namespace headgate {

/// Records which routes a backend chose for the sequences of a call, and why it declined better ones.
struct CallReport {
  /// Sequences that took one route for the same reasons.
  struct Group {
    const char* route;
    std::int64_t sequences = 0;
    /// Reasons of the routes that declined: "not few_queries: REASON; not native16: REASON".
    std::string declined;
  };
  const char* backend = "";
  std::vector<Group> groups;
  std::size_t memory_bytes = 0;  ///< total bytes of the workspaces of all routes
};

/// Formats one line, for example "headgate: attention_forward, cpu avx3, 2 threads, q f32 (1,8,512,64), …, route tiles
/// × 1 (not …: …), 3.20 MiB, 1.250 ms".
std::string report_line(const char* operation, const Problem& problem, const AttentionOptions& options,
                        const CallReport& report, double milliseconds);

/// Runs a call and prints its report if HEADGATE_VERBOSE is on. If the call throws, nothing is printed.
template <class ProblemT, class Run>
void run_reported(const char* operation, ProblemT& problem, const AttentionOptions& options, const Run& run) {
  if (!is_verbose()) return run();
  CallReport report;
  problem.report = &report;
  const double milliseconds = milliseconds_of(run);
  print_report(report_line(operation, problem, options, report, milliseconds));
}

}  // namespace headgate
