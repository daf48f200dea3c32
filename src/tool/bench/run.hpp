// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tool/bench/cases.hpp"
#include "tool/machine/machine_facts.hpp"

namespace headgate::bench {

struct BenchSettings {
  int threads = 1;
  int min_runs = 9;          ///< fewest timed runs of each case
  int min_slow_runs = 3;     ///< fewest timed runs if a run takes kSlowRun_seconds or more
  double min_seconds = 0.5;  ///< least seconds of measuring a case; tripled in groups that compare cases
  int max_runs = 200;
};

inline constexpr double kSlowRun_seconds = 0.5;
/// Length of a timed run if the work fits in the caches: as many consecutive calls as fit into this time. Otherwise a
/// timed run is one call. In use, calls follow one another too, and between timed runs other programs may evict the
/// caches.
inline constexpr double kShortRound_seconds = 5e-3;

struct CaseResult {
  std::string name;
  std::optional<double> floor, sgemm_floor;
  nlohmann::ordered_json facts;  ///< parameters of the job, for the report
  int threads = 1;
  int runs = 0, calls = 1;  ///< number of calls in each run; times are means over them
  double ms_median = 0.0, ms_min = 0.0;
  double gflops = 0.0;       ///< rate at the median time
  double gflops_best = 0.0;  ///< rate at the least time
  /// FMA peak for the case's threads and the job's dtype: best and median of the windows between the timed runs.
  double fma_peak_gflops = 0.0, fma_peak_median_gflops = 0.0;

  double read_gb = 0.0;    ///< GB (1e9 bytes) that a run reads; 0 if reading does not limit it
  double read_gbps = 0.0;  ///< median read rate of the passes between the runs, in GB/s
  /// Share of the read limit: median over the runs of streaming time divided by run time. The streaming time of a run
  /// is that of the same bytes at the rate measured just before it, because a shared machine's memory rate changes from
  /// minute to minute.
  double fraction_of_read = 0.0;

  double fraction_of_peak() const { return gflops / fma_peak_gflops; }
  /// Returns the share of the limit that is reached first: reading, or computing at FMA peak.
  double fraction_of_limit() const { return std::max(fraction_of_peak(), fraction_of_read); }
  double best_fraction_of_peak() const { return gflops_best / fma_peak_gflops; }
};

struct RatioResult {
  std::string numerator, denominator;
  std::optional<double> floor;
  double value = 0.0;  ///< ratio of rates, median over the rounds
  double best = 0.0;   ///< ratio of the best rates
};

struct GroupResult {
  std::vector<CaseResult> cases;
  std::vector<RatioResult> ratios;
};

/// Runs the cases alternately, in even rounds from first to last and in odd rounds from last to first. Measures FMA
/// peak before each run.
GroupResult run_group(const BenchGroup& group, const BenchSettings& settings, PeakMeters& peaks);

}  // namespace headgate::bench
