// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "library/attention/problem.hpp"
#include "library/call/verbose.hpp"
#include "library/core/stopwatch.hpp"

// Formats and prints the line that HEADGATE_VERBOSE=1 shows for an attention call (call/verbose.hpp).

namespace headgate {

/// Records which route (algorithm of the backend, such as "tiles" or "few_queries") computed each sequence of a call.
/// Also records why preferred routes declined.
struct CallReport {
  /// Counts the sequences that took the same route for the same reasons.
  struct Group {
    const char* route;
    std::int64_t sequences = 0;
    /// Reasons why preferred routes declined: "not few_queries: REASON; not native16: REASON".
    std::string declined;
  };
  const char* backend = "";
  std::vector<Group> groups;
  std::size_t memory_bytes = 0;  ///< total bytes of the workspaces of all routes
};

/// Returns a line like "headgate: attention_forward, cpu avx3, 2 threads, q f32 (1,8,512,64), …, route tiles × 1 (not
/// …: …), 3.20 MiB, 1.250 ms".
std::string report_line(const char* operation, const Problem& problem, const AttentionOptions& options,
                        const CallReport& report, double milliseconds);

/// Measures the time of a call and prints its report if HEADGATE_VERBOSE is on.
class ReportedCall {
 public:
  /// Starts the clock. If HEADGATE_VERBOSE is on, sets problem.report, in which the backend records routes.
  /// The arguments must outlive the object.
  ReportedCall(const char* operation, Problem& problem, const AttentionOptions& options)
      : operation_(operation), problem_(problem), options_(options) {
    if (is_verbose()) problem.report = &report_;
  }
  ReportedCall(const ReportedCall&) = delete;
  ReportedCall& operator=(const ReportedCall&) = delete;

  /// Prints the report if HEADGATE_VERBOSE is on. Call it only after the attention call has succeeded.
  void end() const;

 private:
  const char* operation_;
  const Problem& problem_;
  const AttentionOptions& options_;
  CallReport report_;
  Stopwatch watch_;
};

}  // namespace headgate
