// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
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

/// Times a call, and prints its report if HEADGATE_VERBOSE is on.
class ReportedCall {
 public:
  /// Begins the call. The backend writes to problem.report. The arguments must outlive the object.
  ReportedCall(const char* operation, Problem& problem, const AttentionOptions& options)
      : operation_(operation), problem_(problem), options_(options) {
    if (is_verbose()) problem.report = &report_;
  }
  ReportedCall(const ReportedCall&) = delete;
  ReportedCall& operator=(const ReportedCall&) = delete;

  /// Ends a call that has succeeded: prints its report.
  void end() const;

 private:
  const char* operation_;
  const Problem& problem_;
  const AttentionOptions& options_;
  CallReport report_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace headgate
