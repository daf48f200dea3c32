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
  int min_slow_runs = 3;     ///< fewest timed runs of a case whose runs take kSlowRun_seconds or more
  double min_seconds = 0.5;  ///< total time to spend on timed runs of a case; tripled if the group compares cases
  int max_runs = 200;
};

inline constexpr double kSlowRun_seconds = 0.5;
/// Duration of a timed run, which makes as many calls as fit in this time, at least one.
/// Most of these calls find their data in the caches, as in real use. With a single call per run, other programs could
/// evict the data between runs.
/// A timed run of a memory-bound job makes only one call.
inline constexpr double kShortRound_seconds = 5e-3;

struct CaseResult {
  std::string name;
  std::optional<double> floor, sgemm_floor;
  nlohmann::ordered_json facts;  ///< parameters of the job, for the report
  int threads = 1;
  int runs = 0, calls = 1;               ///< number of timed runs, and number of calls in each run
  double ms_median = 0.0, ms_min = 0.0;  ///< median and minimum over the runs of the mean time per call
  double gflops = 0.0;                   ///< FLOP rate at the median time
  double gflops_best = 0.0;              ///< FLOP rate at the shortest time
  /// Highest and median FMA peak measured between the timed runs, for the case's number of threads and dtype.
  double fma_peak_gflops = 0.0, fma_peak_median_gflops = 0.0;

  double read_gb = 0.0;    ///< memory traffic of a call in GB (1e9 bytes); 0 if the call is not memory-bound
  double read_gbps = 0.0;  ///< median of the machine's read rates measured before the timed runs, in GB/s
  /// Share of the machine's memory read rate that the case reaches: the median over the timed runs.
  /// The share of a run is read_gb / (read rate · seconds per call).
  /// The read rate is measured just before each run, because on a shared machine it changes from minute to minute.
  double fraction_of_read = 0.0;

  double fraction_of_peak() const { return gflops / fma_peak_gflops; }
  /// Returns the share of the limit that the case is closest to: FMA peak or memory read rate.
  double fraction_of_limit() const { return std::max(fraction_of_peak(), fraction_of_read); }
  double best_fraction_of_peak() const { return gflops_best / fma_peak_gflops; }
};

struct RatioResult {
  std::string numerator, denominator;
  std::optional<double> floor;
  double value = 0.0;  ///< median over the rounds of the ratio of FLOP rates
  double best = 0.0;   ///< ratio of the best FLOP rates
};

struct GroupResult {
  std::vector<CaseResult> cases;
  std::vector<RatioResult> ratios;
};

/// Runs the cases alternately: from first to last in even rounds, from last to first in odd rounds.
/// Measures FMA peak before each timed run.
GroupResult run_group(const BenchGroup& group, const BenchSettings& settings, PeakMeters& peaks);

}  // namespace headgate::bench
